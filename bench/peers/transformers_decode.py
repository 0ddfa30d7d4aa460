#!/usr/bin/env python3
"""Times one stream's plain decode of transformers' own class beside `flashlane bench`, on one GPU.

    bench/peers/transformers_decode.py BINARY [--layers N] [--tokens N] [--prompt N]

Both run the true shape with N layers (8) and random bf16 weights; flashlane before and after, so that a
drift of the machine shows. The n-gram table is cut to some rows here, which changes no read of a token.
transformers runs as it comes (its default attention and experts, no compilation), one token a call
with its cache. Prints both medians, their spread and the ratio. Needs torch and a transformers that knows
qwen4_exp; weights of 8 layers take 42 GB.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time

NGRAM_ROWS = 200_000  # of each head, about; 20,000,000 in the real model


def ours(options):
    """ms a token: the bench's own median, lowest and highest."""
    done = subprocess.run(
        [options.binary, "bench", "--backend", "cuda", "--json", "--model",
         f"synth:true,layers={options.layers},format=bf16", "--prompt-tokens", str(options.prompt),
         "--decode-tokens", str(options.tokens), "--drafts", "off", "--unpriced", "--rows", "1",
         "--rounds", "5", "--probe-mib", "256"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{options.binary} bench: {done.stderr.strip()[-500:]}")
    report = json.loads(done.stdout)
    cell = next(cell for cell in report["cells"] if cell["kind"] == "decode")
    return cell["ms"], cell["ms_min"], cell["ms_max"]


def config_of(options):
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
    return Qwen4ExpTextConfig(
        vocab_size=248320, hidden_size=2560, num_hidden_layers=options.layers, num_attention_heads=24,
        num_key_value_heads=2, head_dim=256, max_position_embeddings=262144, rms_norm_eps=1e-6,
        linear_num_key_heads=16, linear_num_value_heads=48, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_conv_kernel_dim=4, output_gate_type="sigmoid",
        moe_intermediate_size=640, shared_expert_intermediate_size=640, num_experts=512,
        num_experts_per_tok=10, hc_count=4, hc_lowrank=320, ple_layer_ids=[2], ple_embed_dim=2560,
        ngram_size=3, heads_per_ngram=8, ngram_vocab_size_base=NGRAM_ROWS, split_ngram_parts=1,
        indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=128, indexer_budget=2048,
        indexer_compress_ratio=4, bos_token_id=248044, eos_token_id=248044,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                         "mrope_interleaved": True, "mrope_section": [11, 11, 10]})


def theirs(options):
    """ms of each token after the prompt, and what ran."""
    import torch
    import transformers
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = Qwen4ExpForCausalLM._from_config(config_of(options), dtype=torch.bfloat16).eval()
    said = (f"transformers {transformers.__version__}, torch {torch.__version__}, attention "
            f"{model.config._attn_implementation}, experts "
            f"{getattr(model.config, '_experts_implementation', None)}")
    times = []
    with torch.inference_mode():
        ids = torch.randint(0, 248000, (1, options.prompt), device="cuda")
        cache = None
        for step in range(options.tokens + 8):  # the first ones warm up
            torch.cuda.synchronize()
            begin = time.perf_counter()
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            if step >= 8:
                times.append((time.perf_counter() - begin) * 1e3)
    del model, cache, out, ids
    gc.collect()
    torch.cuda.empty_cache()  # the next run of ours needs the room
    return times, said


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    options = parser.parse_args()
    before = ours(options)
    times, said = theirs(options)
    after = ours(options)
    own = statistics.median([before[0], after[0]])
    other = statistics.median(times)
    for name, cell in (("flashlane before", before), ("flashlane after", after)):
        print(f"{name:18} {cell[0]:8.3f} ms a token ({cell[1]:.3f} to {cell[2]:.3f})")
    print(f"{'transformers':18} {other:8.3f} ms a token ({min(times):.3f} to {max(times):.3f}); {said}")
    print(f"{'ratio':18} {other / own:8.1f}")


if __name__ == "__main__":
    main()
