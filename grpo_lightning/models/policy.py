"""A causal language model that scores the tokens of completions."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_lightning.engines.skeleton import tied_aliases
from grpo_lightning.errors import UserError, in_one_line
from grpo_lightning.functional.logprobs import TokenScores, head_logprobs, logprobs_from_logits
from grpo_lightning.models.packing import pack, spread
from grpo_lightning.types import Layout, SequenceBatch

log = logging.getLogger(__name__)

Where = tuple[Tensor, ...]
"""Rows and columns of a batch's trained tokens, each ``[N]``; found once a forward, since a GPU has to wait for it."""


def scattered(figures: Tensor, where: Where, batch: SequenceBatch) -> Tensor:
    """Figures of the tokens ``where``, ``[N]``, in their places, 0 elsewhere, ``[B, T]``."""
    return figures.new_zeros(batch.completion_mask.shape).index_put(where, figures)


class Policy(nn.Module):
    """Wraps a Hugging Face causal LM; calling it gives log-probabilities and entropies, never a ``[B, T, V]`` tensor.

    Only trained completion positions reach the language-model head. Positions are explicit and padding is on the right,
    so that rounding does not depend on how a batch is padded.

    Args:
        model: any transformers causal LM whose logits are a linear head, optionally scaled or capped.
        packing: compute a batch's sequences one behind the other instead of padded, and prompts that they share once
            (``models.packing``). The figures are the same but for rounding.
    """

    def __init__(self, model: PreTrainedModel, *, packing: bool = False) -> None:
        super().__init__()
        self.model = model
        attention = model.config._attn_implementation
        self.packing = packing and (attention == "sdpa" or "flash" in attention)
        self.shares_prompts = packing and attention == "sdpa"
        """Whether sequences with the same prompt, one behind the other, have it once."""
        self.tied = tied_aliases(model)
        """Second names of tied tensors, each with its first; found here, since shards no longer show them."""
        text = model.config.get_text_config()
        self.softcap: float | None = getattr(text, "final_logit_softcapping", None)
        # Cohere multiplies its logits by logit_scale, Granite divides them by logits_scaling.
        factor, divisor = getattr(text, "logit_scale", None), getattr(text, "logits_scaling", None)
        self.scale = float(factor or 1.0) / float(divisor or 1.0)

    def forward(self, batch: SequenceBatch, *, temperature: float = 1.0) -> TokenScores:
        """Score the trained tokens of ``batch``.

        Args:
            batch: sequences; ``completion_mask`` says which tokens are scored.
            temperature: the one the completions were sampled at.

        Returns:
            Log-probabilities and entropies, ``[B, T]``, 0 where the mask is.
        """
        where = batch.completion_mask.nonzero(as_tuple=True)
        return self.scores(self.predicting_states(batch, *where), batch, where, temperature=temperature)

    def scores(self, states: Tensor, batch: SequenceBatch, where: Where, *, temperature: float) -> TokenScores:
        """The head alone, on ``predicting_states`` of the tokens ``where``, ``[N, H]``; the rest as in ``forward``."""
        head = self.model.get_output_embeddings()
        logprobs, entropy = head_logprobs(
            states,
            head.weight,
            batch.completion_ids[where],
            bias=head.bias,
            temperature=temperature,
            scale=self.scale,
            softcap=self.softcap,
        )
        return TokenScores(scattered(logprobs, where, batch), scattered(entropy, where, batch))

    @property
    def layout(self) -> Layout:
        """How a batch's sequences are laid out for the model."""
        return "shared" if self.shares_prompts else "packed" if self.packing else "padded"

    @torch.no_grad()
    def fingerprint(self) -> str:
        """Of the weights, by the first numbers of every tensor in bfloat16: tells models of one architecture apart."""
        digest = hashlib.blake2b(digest_size=8)
        for parameter in self.model.parameters():
            digest.update(parameter.flatten()[:16].float().bfloat16().float().cpu().numpy().tobytes())
        return digest.hexdigest()

    def verify(self) -> None:
        """Check on a few tokens that our logits are the model's own, and give up packing where it does not work.

        Raises:
            UserError: if the model does something to its logits that we do not know, or scores otherwise in training.
        """
        chosen = self.model.config._attn_implementation
        if "flash" in chosen:  # takes neither float32 nor a CPU
            self.model.set_attn_implementation("eager")
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.25
        wanted, self.packing = self.packing, False
        self._verify_logits(tolerance)
        self._verify_training(tolerance)
        fault = self._packing_fault(tolerance) if wanted else None
        self.packing = wanted and fault is None
        self.shares_prompts = self.shares_prompts and self.packing
        if fault:
            log.warning(
                "--model.packing true: sequences are padded after all, since %s (--model.attn_implementation %s) %s",
                type(self.model).__name__,
                chosen,
                fault,
            )
        if "flash" in chosen:
            self.model.set_attn_implementation(chosen)

    @torch.no_grad()
    def _verify_logits(self, tolerance: float) -> None:
        batch = self._probe(1)
        logits = self.model(input_ids=batch.input_ids, use_cache=False).logits
        gap = (self(batch).logprobs - logprobs_from_logits(logits[:, :-1], batch.completion_ids)).abs().max().item()
        if not gap <= tolerance:
            raise UserError(
                f"--model.policy: {type(self.model).__name__} changes its logits after the head in a way unknown here "
                f"(log-probabilities differ by {gap:.2g}); please report the model"
            )

    @torch.no_grad()
    def _verify_training(self, tolerance: float) -> None:
        """Refuse a model that draws its experts in training, or adds noise: it would learn as another policy than the
        one that sampled."""
        batch, training, cuda = self._probe(4), self.model.training, self.model.device.type == "cuda"
        # What it draws here must not change what is drawn later.
        with torch.random.fork_rng(devices=[self.model.device] if cuda else []):
            trained, sampled = (self.model.train(mode) and self(batch).logprobs for mode in (True, False))
        self.model.train(training)
        gap = (trained - sampled).abs().max().item()
        if not gap <= tolerance:
            raise UserError(
                f"--model.policy: {type(self.model).__name__} scores tokens otherwise in training than when it samples "
                f"(log-probabilities differ by {gap:.2g}), as a model does that draws its experts or has dropout left: "
                "it would not learn from its own samples; choose another model"
            )

    def _packing_fault(self, tolerance: float) -> str | None:
        """What stands against packing: sequences that score otherwise than padded, or that see each other.

        A recurrent state may carry too little from one to the other to be seen in the scores of random weights: a
        gradient shows it exactly.
        """
        batch, tokens = self._probe(3, prompt=4), []
        batch.input_ids[1, :4] = batch.input_ids[0, :4]  # a prompt to share
        batch.prompt_lengths[2] = 1  # a completion longer than its prompt

        def keep(*call: Any) -> Tensor:
            tokens.append(call[-1].detach().requires_grad_())
            return tokens[-1]

        with torch.no_grad():
            padded = self(batch).logprobs
        self.packing = True
        handle = self.model.get_input_embeddings().register_forward_hook(keep)
        try:
            packed = self(batch).logprobs
        except (TypeError, ValueError, RuntimeError) as error:  # of code that takes no such arguments
            return f"fails on several sequences in one row: {in_one_line(error)}"
        finally:
            handle.remove()
        (gradient,) = torch.autograd.grad(packed[1:].sum(), tokens)
        gap = (packed - padded).abs().max().item()
        if gradient[0, 4:8].any() or not gap <= tolerance:  # the first one's completion
            return "does not keep several sequences in one row apart"
        return None

    def _probe(self, rows: int, *, prompt: int = 1) -> SequenceBatch:
        """Sequences of eight tokens each."""
        vocabulary, device = self.model.get_output_embeddings().weight.shape[0], self.model.device
        return SequenceBatch(
            input_ids=(torch.arange(8 * rows, device=device) * 7919 % vocabulary).view(rows, 8),
            sequence_lengths=torch.full((rows,), 8, device=device),
            prompt_lengths=torch.full((rows,), prompt, device=device),
            completion_mask=torch.ones(rows, 8 - prompt, device=device),
        )

    def predicting_states(self, batch: SequenceBatch, row: Tensor, column: Tensor) -> Tensor:
        """Last hidden states from which completion tokens are predicted: those of the tokens before them.

        Args:
            batch: sequences.
            row: of each token, ``[N]``.
            column: of each token in its completion, ``[N]``.

        Returns:
            ``[N, H]``.
        """
        before = batch.completion_positions[row, column] - 1
        if not self.packing:
            positions = torch.arange(batch.input_ids.shape[1], device=row.device).expand_as(batch.input_ids)
            return self._decoded(batch.input_ids, positions, attention_mask=batch.attention_mask)[row, before]
        packed = pack(batch, share_prompts=self.shares_prompts)
        if self.shares_prompts:
            window = getattr(self.model.config.get_text_config(), "sliding_window", None) or None
            options = {
                # Transformers would make one of N x N entries. Integers, which whatever else reads it refuses.
                "attention_mask": packed.positions.new_zeros(1, 1, 1, 1),
                "spread_over": spread(packed, batch, window=window),
            }
        else:
            options = {"attention_mask": None}
        return self._decoded(packed.input_ids, packed.positions, **options)[0, packed.places[row, before]]

    def _decoded(self, input_ids: Tensor, positions: Tensor, **options: Any) -> Tensor:
        """Last hidden states, ``[B, S, H]``."""
        decoder = self.model.base_model
        return decoder(input_ids=input_ids, position_ids=positions, use_cache=False, **options).last_hidden_state
