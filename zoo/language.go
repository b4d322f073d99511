package zoo

import (
	"fmt"

	"weft/job"
)

// The networks of Hugging Face's transformers, in training mode, with fused
// attention.

// bert is BertForPreTraining: the encoder, the pooler, and both heads, the one
// that predicts tokens tied to the table of the tokens.
func bert(layers int, hidden int64) func(*network, int64) {
	return func(n *network, sequence int64) {
		const vocabulary, positions, types = 30522, 512, 2
		embed := func(name string, rows int64) (value, job.TensorID) {
			name = "bert.embeddings." + name
			table := n.param(name+".weight", rows*hidden)
			return n.embedding(name, sequence, hidden, table), table
		}
		words, table := embed("word_embeddings", vocabulary)
		places, _ := embed("position_embeddings", positions)
		kinds, _ := embed("token_type_embeddings", types)
		x := n.sum("bert.embeddings.add", words, places, kinds)
		x = n.layerNorm("bert.embeddings.LayerNorm", x)
		x = n.dropout("bert.embeddings.dropout", x)
		for i := range layers {
			x = n.encoder(fmt.Sprintf("bert.encoder.layer.%d.", i), x)
		}

		first := value{x.layer, shape{hidden, 1, 1}}
		pooled := n.tanh("bert.pooler.activation", n.linear("bert.pooler.dense", first, hidden))
		bias := n.param("cls.predictions.bias", vocabulary)
		y := n.gelu("cls.predictions.transform.gelu", n.linear("cls.predictions.transform.dense", x, hidden))
		y = n.layerNorm("cls.predictions.transform.LayerNorm", y)
		y = n.project("cls.predictions.decoder", y, vocabulary, table, bias)
		next := n.linear("cls.seq_relationship", pooled, 2)
		n.crossEntropy("cls.predictions.loss", y)
		n.crossEntropy("cls.seq_relationship.loss", next)
	}
}

// encoder is one layer of BERT: attention and feed-forward, each added to its
// input and then normalised.
func (n *network) encoder(name string, x value) value {
	h := x.features
	q := n.linear(name+"attention.self.query", x, h)
	k := n.linear(name+"attention.self.key", x, h)
	v := n.linear(name+"attention.self.value", x, h)
	y := n.attention(name+"attention.self", h, q, k, v)
	y = n.linear(name+"attention.output.dense", y, h)
	y = n.dropout(name+"attention.output.dropout", y)
	x = n.layerNorm(name+"attention.output.LayerNorm", n.sum(name+"attention.output.add", y, x))

	y = n.gelu(name+"intermediate.gelu", n.linear(name+"intermediate.dense", x, 4*h))
	y = n.dropout(name+"output.dropout", n.linear(name+"output.dense", y, h))
	return n.layerNorm(name+"output.LayerNorm", n.sum(name+"output.add", y, x))
}

// gpt2 is GPT2LMHeadModel, whose head is tied to the table of the tokens.
func gpt2(layers int, hidden int64) func(*network, int64) {
	return func(n *network, sequence int64) {
		const vocabulary, positions = 50257, 1024
		table := n.param("transformer.wte.weight", vocabulary*hidden)
		words := n.embedding("transformer.wte", sequence, hidden, table)
		places := n.embedding("transformer.wpe", sequence, hidden, n.param("transformer.wpe.weight", positions*hidden))
		x := n.dropout("transformer.drop", n.sum("transformer.add", words, places))
		for i := range layers {
			x = n.decoder(fmt.Sprintf("transformer.h.%d.", i), x)
		}
		x = n.layerNorm("transformer.ln_f", x)
		n.crossEntropy("loss", n.project("lm_head", x, vocabulary, table))
	}
}

// decoder is one layer of GPT-2: attention and feed-forward, each of its
// normalised input, to which it is added.
func (n *network) decoder(name string, x value) value {
	h := x.features
	y := n.linear(name+"attn.c_attn", n.layerNorm(name+"ln_1", x), 3*h)
	y = n.linear(name+"attn.c_proj", n.attention(name+"attn", h, y), h)
	x = n.sum(name+"attn.add", n.dropout(name+"attn.resid_dropout", y), x)

	y = n.gelu(name+"mlp.act", n.linear(name+"mlp.c_fc", n.layerNorm(name+"ln_2", x), 4*h))
	y = n.dropout(name+"mlp.dropout", n.linear(name+"mlp.c_proj", y, h))
	return n.sum(name+"mlp.add", y, x)
}

// llama is LlamaForCausalLM with the sizes of Llama-2-7B.
func llama(n *network, sequence int64) {
	const vocabulary, layers, hidden, inner = 32000, 32, 4096, 11008
	x := n.embedding("model.embed_tokens", sequence, hidden, n.param("model.embed_tokens.weight", vocabulary*hidden))
	for i := range layers {
		name := fmt.Sprintf("model.layers.%d.", i)
		weight := func(part string, elements int64) job.TensorID { return n.param(name+part+".weight", elements) }
		q, k := weight("self_attn.q_proj", hidden*hidden), weight("self_attn.k_proj", hidden*hidden)
		v, o := weight("self_attn.v_proj", hidden*hidden), weight("self_attn.o_proj", hidden*hidden)
		gate, up, down := weight("mlp.gate_proj", inner*hidden), weight("mlp.up_proj", inner*hidden), weight("mlp.down_proj", hidden*inner)
		before, after := weight("input_layernorm", hidden), weight("post_attention_layernorm", hidden)

		y := n.norm(name+"input_layernorm", x, before)
		query := n.project(name+"self_attn.q_proj", y, hidden, q)
		key := n.project(name+"self_attn.k_proj", y, hidden, k)
		values := n.project(name+"self_attn.v_proj", y, hidden, v)
		query, key = n.rotary(name+"self_attn.q_rotary", query), n.rotary(name+"self_attn.k_rotary", key)
		y = n.project(name+"self_attn.o_proj", n.attention(name+"self_attn", hidden, query, key, values), hidden, o)
		x = n.sum(name+"self_attn.add", y, x)

		y = n.norm(name+"post_attention_layernorm", x, after)
		gated := n.silu(name+"mlp.act_fn", n.project(name+"mlp.gate_proj", y, inner, gate))
		y = n.multiply(name+"mlp.mul", gated, n.project(name+"mlp.up_proj", y, inner, up))
		x = n.sum(name+"mlp.add", n.project(name+"mlp.down_proj", y, hidden, down), x)
	}
	x = n.norm("model.norm", x, n.param("model.norm.weight", hidden))
	n.crossEntropy("loss", n.project("lm_head", x, vocabulary, n.param("lm_head.weight", vocabulary*hidden)))
}
