"""Sampling with vLLM in the trainer's own process. The only file that imports vLLM; see ``vllm_process`` too."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.engines.base import ModelSpec, RolloutEngine, Sampling
from grpo_lightning.engines.isolation import preserved_process_group, preserved_randomness
from grpo_lightning.engines.requests import completion_limits, progress_bar
from grpo_lightning.engines.skeleton import WeightsMismatchError, checked, empty_model, tied_aliases, weight_shapes
from grpo_lightning.engines.vllm_process import LoadWatch, contained_start, explained_start, installed_version
from grpo_lightning.errors import UserError
from grpo_lightning.types import Completion

log = logging.getLogger(__name__)


class VLLMEngine(RolloutEngine):
    """Samples with vLLM, one engine in each rank's process.

    Weights go over by vLLM's own reload, tensor by tensor, so that a sharded policy can be streamed. The reported
    log-probabilities are those of the distribution that is sampled. vLLM seeds the global generators, changes the
    environment and takes the process group down with it; all of that is undone here.

    On a GPU, ``sleep`` hands the memory back between rollouts. On CPUs vLLM cannot sleep, and ``sleep`` does nothing.
    """

    def __init__(
        self,
        *,
        memory_share: float = 0.3,
        kv_cache_gib: float = 2.0,
        block_size: int | None = None,
        max_model_length: int | None = None,
        max_sequences: int = 256,
        sleep_level: int = 0,
        enforce_eager: bool | None = None,
        enable_prefix_caching: bool = True,
        tensor_parallel_size: int = 1,
    ) -> None:
        """Keep the settings.

        Args:
            memory_share: share of a GPU's memory for vLLM's weights and cache, beside the trainer.
            kv_cache_gib: GiB of memory for the key-value cache on CPUs.
            block_size: tokens of one cache block; null for 32 on CPUs (vLLM's 128 there shares next to nothing of a
                short prompt within its group) and vLLM's default on GPUs.
            max_model_length: tokens of the longest prompt plus completion; null for what the data and ``rollout`` need.
            max_sequences: sequences that are generated at a time.
            sleep_level: what a GPU gives back between rollouts: 0 nothing, 1 the cache (weights wait in CPU memory),
                2 the cache and the weights (they are sent anew).
            enforce_eager: no CUDA graphs; null for true on CPUs and false on GPUs.
            enable_prefix_caching: compute a prompt once for its whole group. Emptied whenever the weights change.
            tensor_parallel_size: GPUs that share one engine; only 1 for now.
        """
        self.memory_share = memory_share
        self.kv_cache_gib = kv_cache_gib
        self.block_size = block_size
        self.max_model_length = max_model_length
        self.max_sequences = max_sequences
        self.sleep_level = sleep_level
        self.enforce_eager = enforce_eager
        self.enable_prefix_caching = enable_prefix_caching
        self.tensor_parallel_size = tensor_parallel_size
        self._llm: Any = None
        self._spec: ModelSpec | None = None
        self._expected: dict[str, torch.Size] = {}
        self._aliases: dict[str, str] = {}
        self._watch: LoadWatch | None = None
        self._owns_process_group = True
        self._launched = self._ready = False
        self._weights_asleep = self._cache_asleep = False

    def check(self, *, max_length: int = 0) -> None:
        if self.tensor_parallel_size != 1:
            raise UserError(
                f"--rollout.engine.tensor_parallel_size is {self.tensor_parallel_size}, but each rank runs an engine "
                "of its own; set it to 1."
            )
        if self.sleep_level not in (0, 1, 2):
            raise UserError(f"--rollout.engine.sleep_level is {self.sleep_level}; give 0, 1 or 2.")
        if not 0 < self.memory_share <= 1:
            raise UserError(f"--rollout.engine.memory_share is {self.memory_share}; give a share above 0, up to 1.")
        for name in ("kv_cache_gib", "max_sequences", "block_size", "max_model_length"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"--rollout.engine.{name} is {value}; give a number above 0.")
        if self.max_model_length is not None and self.max_model_length < max_length:
            raise UserError(
                f"--rollout.engine.max_model_length is {self.max_model_length}, but prompt and completion may take "
                f"{max_length} tokens; raise it, or leave it null."
            )
        installed_version()

    def start(self, model: ModelSpec) -> None:
        self.check(max_length=model.max_length)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if model.device.index and not distributed:
            raise UserError(
                f"the policy is on {model.device}, but vLLM in a single process takes the first GPU that it sees; set "
                f"CUDA_VISIBLE_DEVICES={model.device.index} and --trainer.devices 1."
            )
        on_cpu = model.device.type == "cpu"
        if on_cpu and self.sleep_level:
            log.warning("--rollout.engine.sleep_level has no effect on CPUs: vLLM cannot sleep there.")
        self._owns_process_group = not distributed
        with preserved_randomness():
            skeleton = empty_model(model)
            self._expected, self._aliases = weight_shapes(skeleton), tied_aliases(skeleton)
            # vLLM packs weights on CPUs, and a tied head would keep the packed form of the old embedding.
            untie = on_cpu and bool(self._aliases)
            if not untie:
                self._aliases = {}
            try:
                with contained_start(model.device, distributed=distributed), explained_start():
                    self._launch(self._arguments(model, on_cpu=on_cpu, untie=untie), model)
            except BaseException:
                self.close()
                raise
        self._spec, self._ready = model, False

    def _launch(self, arguments: dict[str, Any], model: ModelSpec) -> None:
        from vllm import LLM, SamplingParams

        self._launched = True
        self._llm = LLM(**arguments)
        self._watch = LoadWatch(self._llm.apply_model(lambda module: module)[0])
        # Some kernels refuse a model only when they first run: find out now.
        self._llm.generate({"prompt_token_ids": [model.pad_token_id]}, SamplingParams(max_tokens=1), use_tqdm=False)

    def _arguments(self, model: ModelSpec, *, on_cpu: bool, untie: bool) -> dict[str, Any]:
        """Everything that vLLM is told; nothing is left to the model folder."""
        length = self.max_model_length or model.max_length
        arguments: dict[str, Any] = {
            "model": model.name_or_path,
            "trust_remote_code": model.trust_remote_code,
            "dtype": model.dtype,
            "max_model_len": length,
            "max_num_seqs": self.max_sequences,
            "gpu_memory_utilization": self.memory_share,
            "enforce_eager": on_cpu if self.enforce_eager is None else self.enforce_eager,
            "enable_prefix_caching": self.enable_prefix_caching,
            "enable_sleep_mode": self._can_sleep(model),
            # Weights and tokens come from the trainer.
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
        }
        if untie:
            arguments["hf_overrides"] = {"tie_word_embeddings": False}
        if on_cpu:
            # Seeded requests crash on CPUs when a prompt is computed in pieces, so one step must hold any prompt.
            arguments["enable_chunked_prefill"] = False
            arguments["max_num_batched_tokens"] = max(4096, length)
            arguments["kv_cache_memory_bytes"] = int(self.kv_cache_gib * 2**30)
        block_size = self.block_size or (32 if on_cpu else None)
        if block_size is not None:
            arguments["block_size"] = block_size
        if not self._owns_process_group:
            # One engine per rank inside the trainer's process group.
            arguments["distributed_executor_backend"] = "external_launcher"
        return arguments

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        llm, watch = self._started()
        self._wake_weights()
        self._ready = False
        self._drop_requests()
        with preserved_randomness():
            llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._sent(tensors)})
        if missing := watch.not_loaded():
            some = ", ".join(sorted(missing)[:5])
            raise WeightsMismatchError(
                f"weight sync: vLLM did not take {len(missing)} of its parameters, such as {some}"
            )
        if not llm.reset_prefix_cache():
            raise RuntimeError("weight sync: vLLM did not empty its prefix cache, which holds keys of older weights")
        self._ready = True

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        from vllm import SamplingParams

        llm, _ = self._started()
        spec = self._spec
        assert spec is not None
        if not self._ready:
            raise RuntimeError("generate before load_weights: the sampler has no current weights")
        limits = completion_limits(prompts, sampling, group_size=group_size, seeds=seeds, max_length=spec.max_length)
        if not prompts:
            return []
        # vLLM refuses several greedy completions of a prompt, which would all be the same.
        greedy = sampling.temperature == 0
        params = [
            SamplingParams(
                n=1 if greedy else group_size,
                seed=None if greedy else seed,
                max_tokens=limit,
                min_tokens=0,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                stop_token_ids=list(spec.eos_token_ids),
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                skip_clone=True,
            )
            for seed, limit in zip(seeds, limits, strict=True)
        ]
        self._wake_cache()
        self._drop_requests()
        # Compiling vLLM's few small CPU functions takes 15 seconds and saves nothing.
        eager = torch.compiler.set_stance("force_eager") if spec.device.type == "cpu" else nullcontext()
        with preserved_randomness(), eager:
            outputs = llm.generate(
                [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=progress_bar() or False
            )
        repeats = group_size if greedy else 1
        return [[_completion(o) for o in output.outputs for _ in range(repeats)] for output in outputs]

    def sleep(self) -> None:
        llm, _ = self._started()
        if not self._can_sleep(self._spec) or self._cache_asleep:
            return
        llm.sleep(level=self.sleep_level)
        self._weights_asleep = self._cache_asleep = True
        self._ready = self._ready and not self.weights_lost_in_sleep

    def wake(self) -> None:
        # The cache wakes with the first request, after the weights have been sent: that keeps the peak low.
        self._wake_weights()

    @property
    def weights_lost_in_sleep(self) -> bool:
        return self.sleep_level == 2 and (self._spec is None or self._can_sleep(self._spec))

    def close(self) -> None:
        llm, self._llm, self._watch, self._spec, self._ready = self._llm, None, None, None, False
        self._weights_asleep = self._cache_asleep = False
        if llm is None and not self._launched:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._launched = False
        kept = nullcontext() if self._owns_process_group else preserved_process_group()
        with preserved_randomness(), kept:
            if llm is not None:
                llm.llm_engine.engine_core.shutdown()
            # Again, for an engine that broke off in its start and left its process groups behind.
            cleanup_dist_env_and_memory()
        del llm
        gc.collect()

    def _can_sleep(self, spec: ModelSpec | None) -> bool:
        return self.sleep_level > 0 and spec is not None and spec.device.type != "cpu"

    def _wake_weights(self) -> None:
        if self._weights_asleep:
            self._llm.wake_up(tags=["weights"])
            self._weights_asleep = False

    def _wake_cache(self) -> None:
        self._wake_weights()
        if self._cache_asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._cache_asleep = False

    def _started(self) -> tuple[Any, LoadWatch]:
        if self._llm is None or self._watch is None:
            raise RuntimeError("the sampler is not started, or already closed")
        return self._llm, self._watch

    def _drop_requests(self) -> None:
        """Abort what an interrupted ``generate`` left behind."""
        running = list(self._llm.llm_engine.output_processor.request_states)
        if running:
            self._llm.llm_engine.abort_request(running, internal=True)

    def _sent(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in checked(tensors, self._expected):
            yield name, tensor.detach()
            for alias, source in self._aliases.items():
                if source == name:
                    yield alias, tensor.detach()


def _completion(output: Any) -> Completion:
    return Completion(
        token_ids=list(output.token_ids),
        logprobs=list(output.logprobs.logprobs),
        finished=output.finish_reason == "stop",
    )
