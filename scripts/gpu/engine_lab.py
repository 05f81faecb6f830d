"""A real vLLM engine in this process, opened: capture its decode graphs again with other slots, and watch its steps."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

SIZES = [1, 2, 4, 8, 16, 32, 64]
VLLM = "vllm"
"""The label of graphs that were captured without us."""


class Lab:
    """One engine and the graphs that were captured for each choice of slots.

    ``use(label)`` makes the engine replay the graphs of a label: `vllm`, or the text of a ``SlotChoice``; a label may
    end in `/alone`, which binds our kernels without promises of overlap.
    """

    def __init__(self, model: str, kv_bytes: int, **arguments: Any) -> None:
        import rank_model
        from vllm import LLM

        from runtime import plugin

        plugin.register()
        rank_model.register()
        began = time.perf_counter()
        self.llm = LLM(
            model=model, skip_tokenizer_init=True, load_format=rank_model.LOAD_FORMAT, max_model_len=4096,
            max_num_seqs=64, max_num_batched_tokens=4096, seed=0, kv_cache_memory_bytes=kv_bytes,
            gpu_memory_utilization=0.5, compilation_config={"cudagraph_capture_sizes": SIZES},
            additional_config={"k3_decode": "hopper", "k3_slots": "none"}, **arguments,
        )  # fmt: skip
        self.build_s = time.perf_counter() - began
        self.worker = self.llm.llm_engine.collective_rpc(lambda worker: worker)[0]
        self.worker = getattr(self.worker, "worker", self.worker)
        self.runner = self.worker.model_runner
        self.manager = self.runner.cudagraph_manager
        top = self.runner.model
        self.model = top.get_language_model() if hasattr(top, "get_language_model") else top
        self.decode = self.model.specialized_decode
        self.decode.moe_provider = "cute"  # asked for by name until they are what automatic choice takes
        self.graphs: dict[str, Any] = {"none": self.manager.graphs}
        self.capture_s: dict[str, float] = {}
        self._requests = 0
        self._compute_logits = top.compute_logits
        self._watch: Callable[[Any], Any] | None = None
        top.compute_logits = self._logits

    # ---- graphs -------------------------------------------------------------------------------------------

    def use(self, label: str) -> None:
        """Replay the graphs of ``label``, captured now if they never were."""
        if label not in self.graphs:
            self._capture(label)
        self.manager.graphs = self.graphs[label]
        self.manager._graphs_captured = True

    def _capture(self, label: str) -> None:
        import torch
        from vllm.config import CUDAGraphMode

        from runtime.kernels.common.launch.overlap import Overlap
        from runtime.model import step as loop

        began = time.perf_counter()
        torch.cuda.synchronize()
        text, _, alone = label.partition("/")
        derived = loop.overlaps
        if text == VLLM:
            self.model.specialized_decode = None
        else:
            if alone:
                loop.overlaps = lambda launches: [Overlap()] * len(launches)
            try:
                self.decode.choose(loop.SlotChoice.parse(text))
            finally:
                loop.overlaps = derived
            self.decode.prepare_kv()
        every, self.manager._capture_descs = (
            self.manager._capture_descs,
            {CUDAGraphMode.FULL: self.manager._capture_descs[CUDAGraphMode.FULL]},
        )
        # graphs of other labels stay alive: their pool is shared, and must never be empty
        self.manager.graphs = {}
        try:
            self.runner.capture_model()
            self.graphs[label] = self.manager.graphs
        finally:
            self.manager._capture_descs = every
            self.model.specialized_decode = self.decode
        self.capture_s[label] = time.perf_counter() - began

    @contextmanager
    def eager(self):
        """Within it decode steps run vLLM's own Python, without graphs."""
        before, self.manager._graphs_captured = self.manager._graphs_captured, False
        try:
            yield
        finally:
            self.manager._graphs_captured = before

    # ---- steps --------------------------------------------------------------------------------------------

    def _logits(self, hidden_states: Any) -> Any:
        logits = self._compute_logits(hidden_states)
        return logits if self._watch is None else self._watch(logits)

    def prompts(self, batch: int, tokens: int = 128, seed: int = 0) -> list[list[int]]:
        """The same random prompts for the same arguments."""
        import torch

        generator = torch.Generator().manual_seed(10_000 + 97 * batch + seed)
        vocabulary = self.model.config.vocab_size
        return [torch.randint(10, vocabulary, (tokens,), generator=generator).tolist() for _ in range(batch)]

    def add(self, prompt: list[int], tokens: int) -> str:
        """Queue a greedy request of ``tokens`` tokens; returns its id."""
        from vllm import SamplingParams

        self._requests += 1
        name = f"lab{self._requests}"
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        self.llm.llm_engine.add_request(name, {"type": "token", "prompt_token_ids": prompt}, sampling)
        return name

    def steps(self, on_step: Callable[[int, float], None] | None = None) -> dict[str, list[int]]:
        """Run the engine until it is empty: tokens by request. ``on_step(number, seconds)`` after each step."""
        engine, found, number = self.llm.llm_engine, {}, 0
        while engine.has_unfinished_requests():
            began = time.perf_counter()
            outputs = engine.step()
            if on_step is not None:
                on_step(number, time.perf_counter() - began)
            number += 1
            for output in outputs:
                found[output.request_id] = list(output.outputs[0].token_ids)
        return found

    def tokens(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Greedy tokens of a batch, in the order of its prompts."""
        names = [self.add(prompt, count) for prompt in prompts]
        found = self.steps()
        return [found[name] for name in names]

    def logits(self, prompts: list[list[int]], count: int, forced: list[Any] | None = None) -> list[Any]:
        """Logits of every sampling step [rows, vocabulary]; ``forced``: those whose argmax is sampled instead."""
        import torch

        found: list[Any] = []

        def watch(logits: Any) -> Any:
            found.append(logits.detach().clone())
            if forced is None:
                return logits
            target = forced[len(found) - 1].argmax(-1, keepdim=True)
            return torch.full_like(logits, -1e4).scatter_(1, target, 0.0)

        self._watch = watch
        try:
            self.tokens(prompts, count)
        finally:
            self._watch = None
        return found

    def differences(
        self, prompts: list[list[int]], ours: list[list[int]], theirs: list[list[int]]
    ) -> dict[str, Any]:
        """Where tokens of two runs first differ, and the gap between both choices in vLLM's logits for that prefix.

        A gap below the error of BF16 logits is a near-tie: either choice is right.
        """
        found: list[dict[str, Any]] = []
        self.use(VLLM)
        for prompt, a, b in zip(prompts, ours, theirs, strict=True):
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
            if at is not None:
                logits = self.logits([prompt + b[:at]], 1)[0][-1].float()
                gap = float(logits[b[at]] - logits[a[at]])
                found.append({"at": at, "gap": round(gap, 4), "std": round(float(logits.std()), 3)})
        return {
            "requests": len(prompts),
            "equal": len(prompts) - len(found),
            "largest_gap": max((abs(x["gap"]) for x in found), default=0.0),
            "differences": found,
        }

    def step_times(self, batch: int, count: int) -> dict[str, float]:
        """Median engine step and median GPU time of a replay, in ms, of decode steps at ``batch`` requests."""
        import torch

        events: list[tuple[Any, Any]] = []
        replay = self.manager.run_fullgraph

        def timed(desc: Any) -> Any:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            result = replay(desc)
            pair[1].record()
            events.append(pair)
            return result

        for prompt in self.prompts(batch):
            self.add(prompt, count)
        self.manager.run_fullgraph = timed
        seconds: list[float] = []
        try:
            self.steps(lambda _, s: seconds.append(s))
        finally:
            del self.manager.run_fullgraph
        torch.cuda.synchronize()
        steady = seconds[len(seconds) // 5 : -2]
        gpu = [a.elapsed_time(b) for a, b in events[len(events) // 5 : -2]]
        return {
            "step_ms": statistics.median(steady) * 1e3,
            "gpu_ms": statistics.median(gpu),
            "gpu_ms_low": min(gpu),
            "steps": len(gpu),
        }

    def trace(self, batch: int, path: str, steps: int = 4) -> None:
        """Profile ``steps`` decode steps at ``batch`` requests into a Chrome trace."""
        import torch

        for prompt in self.prompts(batch, seed=3):
            self.add(prompt, 24)
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

        def watch(number: int, _: float) -> None:
            if number == 12:
                torch.cuda.synchronize()
                profiler.__enter__()
            elif number == 12 + steps:
                torch.cuda.synchronize()
                profiler.__exit__(None, None, None)

        self.steps(watch)
        profiler.export_chrome_trace(path)
        gc.collect()
