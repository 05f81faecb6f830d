"""Make the tiny Kimi K3: ``python -m runtime.tiny --out DIR`` writes config and tokenizer, offline and deterministic.

Weights are not written: load format ``k3_seeded`` makes them when the engine starts. The tokenizer is a byte-level
BPE trained on the documentation topics that ship with every Python, padded to the model's vocabulary.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from runtime.model.config import TINY

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config() -> dict[str, Any]:
    """``config.json`` of the tiny model."""
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    hf = TINY.to_hf()
    hf["text_config"] |= ids | {"max_position_embeddings": 4096, "dtype": "float32"}
    vision = {
        "model_type": "kimi_k3_vision",
        "patch_size": 14,
        "vt_num_attention_heads": 4,
        "vt_num_hidden_layers": 2,
        "vt_hidden_size": 64,
        "vt_intermediate_size": 128,
        "qkv_hidden_size": 64,
        "text_hidden_size": TINY.hidden_size,
    }
    return hf | ids | {"dtype": "float32", "vision_config": vision, "media_placeholder_token_id": PAD_ID}


def write(out: Path) -> None:
    """Write all files into ``out``, replacing it as a whole: a reader never sees half a model."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".tiny-") as scratch:
        fresh = Path(scratch) / "model"
        fresh.mkdir()
        _write_json(fresh / "config.json", config())
        _write_json(
            fresh / "generation_config.json",
            {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID},
        )
        _write_tokenizer(fresh)
        if out.exists():
            out.rename(Path(scratch) / "old")
        fresh.rename(out)


def _write_tokenizer(out: Path) -> None:
    import pydoc_data.topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # merge order must not depend on threads
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    topics = pydoc_data.topics.topics
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    if tokenizer.get_vocab_size() != TINY.vocab_size:
        raise RuntimeError(f"tokenizer has {tokenizer.get_vocab_size()} tokens, the model {TINY.vocab_size}")
    tokenizer.save(str(out / "tokenizer.json"))
    names = {
        "bos_token": SPECIAL_TOKENS[BOS_ID],
        "eos_token": SPECIAL_TOKENS[EOS_ID],
        "pad_token": SPECIAL_TOKENS[0],
    }
    _write_json(out / "special_tokens_map.json", names)
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "model_max_length": 4096,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m runtime.tiny", description="Write the tiny Kimi K3.")
    parser.add_argument("--out", type=Path, required=True, help="directory to create or replace")
    args = parser.parse_args(argv)
    write(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
