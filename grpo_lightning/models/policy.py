"""A causal language model that scores the tokens of completions."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_lightning.engines.skeleton import tied_aliases
from grpo_lightning.errors import UserError
from grpo_lightning.functional.logprobs import TokenScores, head_logprobs, logprobs_from_logits
from grpo_lightning.models.packing import pack, use_packed_sdpa
from grpo_lightning.types import SequenceBatch

Where = tuple[Tensor, ...]
"""Rows and columns of a batch's trained tokens, each ``[N]``; found once a forward, since a GPU has to wait for it."""


def spread(figures: Tensor, where: Where, batch: SequenceBatch) -> Tensor:
    """Figures of the tokens ``where``, ``[N]``, in their places, 0 elsewhere, ``[B, T]``."""
    return figures.new_zeros(batch.completion_mask.shape).index_put(where, figures)


class Policy(nn.Module):
    """Wraps a Hugging Face causal LM; calling it gives log-probabilities and entropies, never a ``[B, T, V]`` tensor.

    Only trained completion positions reach the language-model head. Positions are explicit and padding is on the right,
    so that rounding does not depend on how a batch is padded.

    Args:
        model: any transformers causal LM whose logits are a linear head, optionally scaled or capped.
        packing: compute a batch's sequences one behind the other instead of padded (``models.packing``). The figures
            are the same but for rounding.
    """

    def __init__(self, model: PreTrainedModel, *, packing: bool = False) -> None:
        super().__init__()
        self.model = model
        self.packing = packing
        self._packed_sdpa = packing and use_packed_sdpa(model)
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
        return TokenScores(spread(logprobs, where, batch), spread(entropy, where, batch))

    @torch.no_grad()
    def fingerprint(self) -> str:
        """Of the weights, by the first numbers of every tensor in bfloat16: tells models of one architecture apart."""
        digest = hashlib.blake2b(digest_size=8)
        for parameter in self.model.parameters():
            digest.update(parameter.flatten()[:16].float().bfloat16().float().cpu().numpy().tobytes())
        return digest.hexdigest()

    def verify(self) -> None:
        """Check on a few tokens that our logits are the model's own, and that packed sequences do not see each other.

        Raises:
            UserError: if the model does something to its logits that we do not know, or cannot be packed.
        """
        chosen = self.model.config._attn_implementation
        if "flash" in chosen:  # takes neither float32 nor a CPU
            self.model.set_attn_implementation("eager")
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.25
        self._verify_logits(tolerance)
        if self.packing:
            self._verify_packing(tolerance)
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

    def _verify_packing(self, tolerance: float) -> None:
        """The second of two sequences has the scores it has padded, and exactly no gradient in the first's tokens.

        A recurrent state may carry too little from one to the other to be seen in the scores of random weights.
        """
        batch, tokens = self._probe(2), []

        def keep(*call: Any) -> Tensor:
            tokens.append(call[-1].detach().requires_grad_())
            return tokens[-1]

        handle = self.model.get_input_embeddings().register_forward_hook(keep)
        packed = self(batch).logprobs
        handle.remove()
        (gradient,) = torch.autograd.grad(packed[1].sum(), tokens)
        self.packing = False
        with torch.no_grad():
            gap = (packed - self(batch).logprobs).abs().max().item()
        self.packing = True
        if gradient[0, : int(batch.sequence_lengths[0])].any() or not gap <= tolerance:
            raise UserError(
                f"--model.packing true: {type(self.model).__name__} (--model.attn_implementation "
                f"{self.model.config._attn_implementation.removesuffix('_packed')}) does not keep several sequences in "
                "one row apart; set --model.packing false"
            )

    def _probe(self, rows: int) -> SequenceBatch:
        """Sequences of eight tokens each, prompts of one."""
        vocabulary, device = self.model.get_output_embeddings().weight.shape[0], self.model.device
        return SequenceBatch(
            input_ids=(torch.arange(8 * rows, device=device) * 7919 % vocabulary).view(rows, 8),
            sequence_lengths=torch.full((rows,), 8, device=device),
            prompt_lengths=torch.ones(rows, dtype=torch.long, device=device),
            completion_mask=torch.ones(rows, 7, device=device),
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
            return self._decoded(batch.input_ids, batch.attention_mask, positions)[row, before]
        packed = pack(batch)
        window = getattr(self.model.config.get_text_config(), "sliding_window", None)
        whole = self._packed_sdpa and (window is None or batch.input_ids.shape[1] <= window)
        hidden = self._decoded(packed.input_ids, packed.places if whole else None, packed.positions)
        return hidden[0, packed.starts[row] + before]

    def _decoded(self, input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor) -> Tensor:
        """Last hidden states, ``[B, S, H]``."""
        decoder = self.model.base_model
        return decoder(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        ).last_hidden_state
