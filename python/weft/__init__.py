"""The Python client of weft. PyTorch's is in weft.torch."""

__version__ = "0.1.0"
