"""The models that recordings, benchmarks and examples train: a convolutional network, a transformer, and dense layers.

ResNet-18 is written out because torchvision would be one more package to
install for a single class; parameter names and shapes are torchvision's.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride):
        super().__init__()
        # Parameters are defined in the order of their use: traces without shapes are
        # matched to tensors.txt in that order.
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False),
                nn.BatchNorm2d(planes),
            )
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)


class ResNet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for z in self.qkv(self.ln1(x)).split(c, dim=2)
        )
        # Written out rather than scaled_dot_product_attention, which torch 1.13
        # does not have.
        a = (q @ k.transpose(-2, -1)) / math.sqrt(c // self.heads)
        a = F.softmax(a.masked_fill(mask, float("-inf")), dim=-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=96, context=256, width=384, layers=4, heads=2, tie=False):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tie:
            # The shared tensor gets its gradient from both ends of the backward
            # pass, so it is ready last although the head comes first.
            self.head.weight = self.tok.weight

    def forward(self, ids):
        t = ids.shape[1]
        x = self.tok(ids) + self.pos.weight[:t]
        # Made here and not kept as a buffer: DDP broadcasts buffers every step, and
        # gloo in torch 1.13 refuses to broadcast booleans.
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.ln(x))


class MLP(nn.Module):
    """Few and large tensors, the largest of which is the first that a forward pass reads."""

    def __init__(self, inputs=3 * 64 * 64, classes=1000):
        super().__init__()
        self.first = nn.Linear(inputs, 512)
        self.second = nn.Linear(512, 1024)
        self.third = nn.Linear(1024, classes)

    def forward(self, x):
        return self.third(F.relu(self.second(F.relu(self.first(torch.flatten(x, 1))))))


def build(name, tie=False, layers=4):
    if name == "resnet18":
        return ResNet18()
    if name == "gpt":
        return GPT(layers=layers, tie=tie)
    if name == "mlp":
        return MLP()
    raise ValueError("unknown model %r" % name)


def batch(name, size, image_size, generator):
    """One synthetic batch: inputs and targets."""
    if name != "gpt":
        x = torch.randn(size, 3, image_size, image_size, generator=generator)
        return x, torch.randint(1000, (size,), generator=generator)
    ids = torch.randint(96, (size, 257), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss(name, out, target):
    if name == "gpt":
        return F.cross_entropy(out.flatten(0, 1), target.flatten())
    return F.cross_entropy(out, target)
