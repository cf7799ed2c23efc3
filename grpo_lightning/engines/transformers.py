"""Sampling with the Hugging Face model itself: slow, but it runs everywhere and needs no second copy of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from grpo_lightning.engines.base import ModelSpec, RolloutEngine, Sampling
from grpo_lightning.engines.draw import draw, processed_logprobs, uniforms
from grpo_lightning.engines.isolation import preserved_randomness
from grpo_lightning.engines.requests import completion_limits, progress_bar
from grpo_lightning.engines.skeleton import checked, empty_model, weight_shapes
from grpo_lightning.errors import UserError
from grpo_lightning.types import Completion


class TransformersEngine(RolloutEngine):
    """Samples with transformers' ``generate`` in the trainer's process.

    It has a module of its own, always in eval mode, whose parameters *are* the tensors that ``load_weights`` is given
    (a copy is made only where dtype or device differ). So in one process the sampler costs no memory, and it follows
    the trainer's in-place updates even before the next ``load_weights``.

    Each completion draws from its own random stream, and the global generators are left alone.
    """

    def __init__(self, *, batch_size: int | None = None) -> None:
        """Keep the settings.

        Args:
            batch_size: sequences that are generated at a time; null for 128 on CPUs, where larger batches are slower,
                and all at once on GPUs. Lower it if generation runs out of memory; the samples stay the same.
        """
        if batch_size is not None and batch_size < 1:
            raise UserError(f"--rollout.engine.batch_size is {batch_size}; give at least 1, or null for the default.")
        self.batch_size = batch_size
        self._spec: ModelSpec | None = None
        self._model: Any = None
        self._expected: dict[str, torch.Size] = {}
        self._ready = False

    def start(self, model: ModelSpec) -> None:
        from transformers import GenerationConfig

        with preserved_randomness():
            self._model = empty_model(model)
        # generate() fills every unset option from here: keep it blank.
        self._model.generation_config = GenerationConfig()
        self._expected = weight_shapes(self._model)
        self._spec = model
        self._ready = False
        # After the prompts the head gets the last of many positions: for such a strided slice torch multiplies row by
        # row on CPUs, in bfloat16 hundreds of times slower (2.5 s for 64 rows of a vocabulary of 32,768).
        head = self._model.get_output_embeddings()
        head.register_forward_pre_hook(lambda _, inputs: tuple(x.contiguous() for x in inputs))
        for module in self._model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(model.device))

    @torch.no_grad()
    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        spec = self._started()
        self._ready = False
        for name, tensor in checked(tensors, self._expected):
            path, _, leaf = name.rpartition(".")
            module = self._model.get_submodule(path)
            dtype = spec.dtype if tensor.is_floating_point() else tensor.dtype
            value = tensor.detach().to(device=spec.device, dtype=dtype)
            if leaf in module._parameters:
                module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
            else:
                module._buffers[leaf] = value
        self._model.tie_weights()
        self._ready = True

    @torch.no_grad()
    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        spec = self._started()
        if not self._ready:
            raise RuntimeError("generate before load_weights: the sampler has no weights yet")
        limits = completion_limits(prompts, sampling, group_size=group_size, seeds=seeds, max_length=spec.max_length)
        # Greedy completions of one prompt are all the same.
        drawn = 1 if sampling.temperature == 0 else group_size
        rows = [(p, seeds[p] + i) for p in range(len(prompts)) for i in range(drawn)]
        groups: list[list[Completion]] = [[] for _ in prompts]
        make_bar = progress_bar() or partial(tqdm, disable=True)
        with preserved_randomness(), make_bar(total=sum(limits) * drawn, desc="generate", unit="tok") as bar:
            completions: dict[tuple[int, int], Completion] = {}
            for chunk in self._chunks(rows, [len(prompt) for prompt in prompts], limits):
                made = self._generate_rows(
                    [prompts[p] for p, _ in chunk], [seed for _, seed in chunk], limits[chunk[0][0]], sampling, bar
                )
                completions.update(zip(chunk, made, strict=True))
        for row in rows:
            groups[row[0]].append(completions[row])
        if drawn < group_size:
            groups = [[_copy(group[0]) for _ in range(group_size)] for group in groups]
        return groups

    def close(self) -> None:
        self._model = self._spec = None
        self._ready = False

    def _started(self) -> ModelSpec:
        if self._spec is None:
            raise RuntimeError("the sampler is not started")
        return self._spec

    def _chunks(
        self, rows: list[tuple[int, int]], lengths: list[int], limits: list[int]
    ) -> Iterator[list[tuple[int, int]]]:
        """Cut the rows into batches: prompts of similar length together, for little padding.

        Rows whose limit is cut by the model's length share a batch only with their equals: ``generate`` counts on
        until the last row is done, and would run beyond the positions that the model has.
        """
        ordered = sorted(rows, key=lambda row: (-limits[row[0]], lengths[row[0]]))
        size = self.batch_size or (128 if self._started().device.type == "cpu" else len(rows))
        chunk: list[tuple[int, int]] = []
        for row in ordered:
            if chunk and (len(chunk) == size or limits[chunk[0][0]] != limits[row[0]]):
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def _generate_rows(
        self, prompts: list[list[int]], seeds: list[int], steps: int, sampling: Sampling, bar: Any
    ) -> list[Completion]:
        """One batch of rows, padded on the left, at most ``steps`` tokens each."""
        from transformers import GenerationConfig, LogitsProcessorList

        spec = self._started()
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), spec.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        picker = _Picker(sampling, seeds, steps, spec, bar)
        self._model.generate(
            input_ids=ids.to(spec.device),
            attention_mask=mask.to(spec.device),
            position_ids=(mask.cumsum(dim=-1) - 1).clamp(min=0).to(spec.device),
            logits_processor=LogitsProcessorList([picker]),
            generation_config=GenerationConfig(
                max_new_tokens=steps,
                do_sample=False,
                num_beams=1,
                use_cache=True,
                eos_token_id=list(spec.eos_token_ids),
                pad_token_id=spec.pad_token_id,
            ),
        )
        return picker.completions()


class _Picker:
    """A logits processor that draws the token itself and leaves ``generate`` no choice but to take it."""

    def __init__(self, sampling: Sampling, seeds: list[int], steps: int, spec: ModelSpec, bar: Any) -> None:
        self.sampling = sampling
        self.eos = torch.tensor(spec.eos_token_ids, device=spec.device)
        self.finished = torch.zeros(len(seeds), dtype=torch.bool, device=spec.device)
        self.uniforms = uniforms(seeds, steps).to(spec.device) if sampling.temperature else None
        self.tokens: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self.bar = bar

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # Of the rows that go on alone: most of a long tail's steps are made for a few.
        rows = (~self.finished).nonzero().squeeze(1)
        logprobs = processed_logprobs(scores[rows], self.sampling)
        if self.uniforms is None:
            drawn = logprobs.argmax(dim=-1)
        else:
            drawn = draw(logprobs, self.uniforms[rows, len(self.tokens)])
        token = self.eos[0].repeat(len(scores)).index_copy(0, rows, drawn)
        self.tokens.append(token)
        chosen = logprobs.gather(1, drawn[:, None]).squeeze(1)
        self.logprobs.append(chosen.new_zeros(len(scores)).index_copy(0, rows, chosen))
        self.bar.update(len(rows))
        self.finished |= torch.isin(token, self.eos)
        return torch.full_like(scores, -torch.inf).scatter_(1, token[:, None], 0.0)

    def completions(self) -> list[Completion]:
        """One per row, cut after the first end-of-sequence token."""
        tokens = torch.stack(self.tokens, dim=1)
        ends = torch.isin(tokens, self.eos)
        lengths = torch.where(ends.any(dim=1), ends.int().argmax(dim=1) + 1, tokens.shape[1]).tolist()
        rows = zip(
            tokens.tolist(), torch.stack(self.logprobs, dim=1).tolist(), lengths, ends.any(dim=1).tolist(), strict=True
        )
        return [
            Completion(token_ids=ids[:length], logprobs=logps[:length], finished=finished)
            for ids, logps, length, finished in rows
        ]


def _copy(completion: Completion) -> Completion:
    return Completion(
        token_ids=list(completion.token_ids), logprobs=list(completion.logprobs), finished=completion.finished
    )
