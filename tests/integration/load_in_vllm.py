"""Opens exported folders in vLLM by its own loader; prints the log-probabilities of fixed tokens as JSON, by folder.

python -m tests.integration.load_in_vllm FOLDER...
"""

from __future__ import annotations

import json
import os
import sys

SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
TOKENS = list(range(5, 25))


def main() -> None:
    os.environ.update(SETTINGS)  # before vLLM is imported
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    found = {}
    for folder in sys.argv[1:]:
        llm = LLM(folder, enforce_eager=True, dtype="float32", max_model_len=64, skip_tokenizer_init=True)
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        (output,) = llm.generate({"prompt_token_ids": TOKENS}, sampling, use_tqdm=False)
        found[folder] = [
            entry[token].logprob for token, entry in zip(TOKENS, output.prompt_logprobs, strict=True) if entry
        ]
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
    print("logprobs", json.dumps(found))


if __name__ == "__main__":
    main()
