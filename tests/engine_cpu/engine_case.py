"""Child process of the engine tests: builds vLLM in-process, generates, prints one JSON line. argv: case as JSON.

``{"engine": {LLM arguments}, "prompts": [[ids]], "max_tokens": [n], "repeat": r, "temperature": t, "whole": file}``

``whole``: a file for the log probabilities of the whole vocabulary, one array [tokens,V] FP32 an output.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    case = json.loads(sys.argv[1])
    import numpy as np
    from vllm import LLM, SamplingParams

    llm = LLM(
        load_format="k3_seeded",
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=case["engine"].pop("kv_cache_memory_bytes", 256 << 20),
        max_num_seqs=16,
        disable_log_stats=False,
        worker_extension_cls="runtime.witness.worker.WitnessExtension",
        **case["engine"],
    )
    prompts = [{"prompt_token_ids": ids} for ids in case["prompts"]]
    sampling = [
        SamplingParams(
            temperature=case.get("temperature", 0),
            max_tokens=n,
            ignore_eos=True,
            logprobs=-1 if "whole" in case else 1,
            detokenize="whole" not in case,  # a thousand words for each token
        )
        for n in case["max_tokens"]
    ]
    outputs, whole = [], []
    for _ in range(case.get("repeat", 1)):
        for request, out in zip(
            case["prompts"], llm.generate(prompts, sampling, use_tqdm=False), strict=True
        ):
            tokens = list(out.outputs[0].token_ids)
            logprobs = [
                step[token].logprob for step, token in zip(out.outputs[0].logprobs, tokens, strict=True)
            ]
            outputs.append({"prompt": request, "tokens": tokens, "logprobs": logprobs})
            if "whole" in case:
                rows = [[step[i].logprob for i in range(len(step))] for step in out.outputs[0].logprobs]
                whole.append(np.array(rows, dtype=np.float32))
    if "whole" in case:
        np.savez(case["whole"], *whole)
    metrics = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", getattr(metric, "values", None))
        if isinstance(value, int | float | list):
            metrics[metric.name] = value
    result = {"outputs": outputs, "metrics": metrics, "witness": llm.collective_rpc("k3_witness")}
    sys.stdout.write("RESULT" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
