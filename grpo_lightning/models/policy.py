"""A causal language model that scores the tokens of completions."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_lightning.engines.skeleton import tied_aliases
from grpo_lightning.errors import UserError
from grpo_lightning.functional.logprobs import TokenScores, head_logprobs, logprobs_from_logits
from grpo_lightning.types import SequenceBatch


class Policy(nn.Module):
    """Wraps a Hugging Face causal LM; calling it gives log-probabilities and entropies, never a ``[B, T, V]`` tensor.

    Only trained completion positions reach the language-model head. Positions are explicit and padding is on the right,
    so that rounding does not depend on how a batch is padded.

    Args:
        model: any transformers causal LM whose logits are a linear head, optionally scaled or capped.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
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
        hidden = self._hidden(batch.input_ids, batch.attention_mask)
        row, column = batch.completion_mask.nonzero(as_tuple=True)
        # The state at position s predicts the token at s + 1.
        states = hidden[row, batch.completion_positions[row, column] - 1]
        head = self.model.get_output_embeddings()
        logprobs, entropy = head_logprobs(
            states,
            head.weight,
            batch.completion_ids[row, column],
            bias=head.bias,
            temperature=temperature,
            scale=self.scale,
            softcap=self.softcap,
        )
        empty = logprobs.new_zeros(batch.completion_mask.shape)
        return TokenScores(empty.index_put((row, column), logprobs), empty.index_put((row, column), entropy))

    @torch.no_grad()
    def fingerprint(self) -> str:
        """Of the weights, by the first numbers of every tensor in bfloat16: tells models of one architecture apart."""
        digest = hashlib.blake2b(digest_size=8)
        for parameter in self.model.parameters():
            digest.update(parameter.flatten()[:16].float().bfloat16().float().cpu().numpy().tobytes())
        return digest.hexdigest()

    @torch.no_grad()
    def verify(self) -> None:
        """Check on a few tokens that our logits are the model's own.

        Raises:
            UserError: if the model does something to its logits that we do not know.
        """
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        ids = (torch.arange(8, device=self.model.device) * 7919 % vocabulary)[None]
        batch = SequenceBatch(
            input_ids=ids,
            sequence_lengths=torch.tensor([8], device=ids.device),
            prompt_lengths=torch.tensor([1], device=ids.device),
            completion_mask=torch.ones(1, 7, device=ids.device),
        )
        chosen = self.model.config._attn_implementation
        if "flash" in chosen:  # takes neither float32 nor a CPU
            self.model.set_attn_implementation("eager")
        own = logprobs_from_logits(self.model(input_ids=ids, use_cache=False).logits[:, :-1], ids[:, 1:])
        gap = (self(batch).logprobs - own).abs().max().item()
        if "flash" in chosen:
            self.model.set_attn_implementation(chosen)
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.25
        if not gap <= tolerance:
            raise UserError(
                f"--model.policy: {type(self.model).__name__} changes its logits after the head in a way unknown here "
                f"(log-probabilities differ by {gap:.2g}); please report the model"
            )

    def _hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Last hidden states, ``[B, S, H]``."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        decoder = self.model.base_model
        return decoder(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        ).last_hidden_state
