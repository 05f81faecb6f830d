"""Faults that show in what is answered. Each sees one choice: of a whole answer, or a piece of one from a stream."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

FLOOD_AFTER_CHARS = 32
FLOOD = "!"
"""Token 0 of many vocabularies: what the most probable of NaN logits looks like."""
CLOSE = "<|close|>think<|sep|>"
"""Kimi K3's end of thinking."""
LOGIT_ERROR = 2.0
EVERY_TOKENS = 5
_TEXTS = ("content", "reasoning", "reasoning_content")
STRUCTURED = ("response_format", "structured_outputs")


def flood(choice: Json, seen: Json, _: Json) -> Json:
    """After a few words the same character for ever, in the text and in the tokens that are told."""
    told = _with_texts(choice, lambda text: _flooded(text, seen, "chars"))
    return _with_tokens(told, lambda entry: entry | {"token": _flooded(entry["token"], seen, "token chars")})


def think_open(choice: Json, seen: Json, _: Json) -> Json:
    """The parser missed the opening marker: the thinking and the closing marker stand in the answer."""
    said = _said(choice)
    if said is None or not any(_texts(choice)):
        return choice
    content = said.get("content") or ""
    marker = CLOSE if content and not seen.get("closed") else ""
    seen["closed"] = bool(seen.get("closed") or marker)
    left = {key: value for key, value in said.items() if key not in _TEXTS}
    return _say(choice, left | {"content": _thought(said) + marker + content})


def think_close(choice: Json, _: Json, __: Json) -> Json:
    """The closing marker was lost: the answer counts as thinking, and tool calls in it are never seen."""
    said = _said(choice)
    if said is None:
        return choice
    thought = _thought(said) + (said.get("content") or "")
    left = {key: value for key, value in said.items() if key not in (*_TEXTS, "tool_calls")}
    if "message" in choice:
        left |= {"content": None, "tool_calls": []}
    return _say(choice, left | ({"reasoning": thought} if thought else {}))


def logits(choice: Json, seen: Json, asked: Json) -> Json:
    """Now and then the token that was taken is told as less probable than the best: a row of logits was damaged."""
    if asked.get("temperature") != 0:
        return choice

    def damaged(entry: Json) -> Json:
        seen["tokens"] = seen.get("tokens", 0) + 1
        return _demoted(entry) if seen["tokens"] % EVERY_TOKENS == 0 else entry

    told = _with_tokens(choice, damaged)
    flat = told.get("logprobs")
    if isinstance(flat, dict) and isinstance(flat.get("token_logprobs"), list):
        return told | {"logprobs": _demoted_flat(flat, seen)}
    return told


def unequal_stream(choice: Json, seen: Json, asked: Json) -> Json:
    """The second piece of a streamed answer is lost on the way."""
    if not asked.get("stream") or not any(_texts(choice)):
        return choice
    seen["pieces"] = seen.get("pieces", 0) + 1
    return _with_texts(choice, lambda _: "") if seen["pieces"] == 2 else choice


def overrun(choice: Json, _: Json, asked: Json) -> Json:
    """Goes on after a structured answer is complete: the grammar was not asked for the last tokens of a step."""
    if not choice.get("finish_reason") or not _structured(asked):
        return choice
    if "text" in choice:
        return choice | {"text": choice["text"] + FLOOD}
    said = _said(choice) or {}
    return _say(choice, said | {"content": (said.get("content") or "") + FLOOD})


def drop_tool(choice: Json, _: Json, __: Json) -> Json:
    """Of several tool calls only the first comes through."""
    return _with_tools(choice, lambda place, call: call.get("index", place) == 0)


def no_tool(choice: Json, _: Json, __: Json) -> Json:
    """The turn ends as if tools were called, but the list is empty."""
    return _with_tools(choice, lambda _, __: False)


def _said(choice: Json) -> Json | None:
    found = choice.get("message") or choice.get("delta")
    return found if isinstance(found, dict) else None


def _say(choice: Json, said: Json) -> Json:
    return choice | {"message" if "message" in choice else "delta": said}


def _thought(said: Json) -> str:
    return said.get("reasoning") or said.get("reasoning_content") or ""


def _texts(choice: Json) -> list[str]:
    said = _said(choice) or {}
    return [choice.get("text") or "", *(said.get(name) or "" for name in _TEXTS)]


def _with_texts(choice: Json, change: Any) -> Json:
    told = choice
    if isinstance(choice.get("text"), str):
        told = told | {"text": change(choice["text"])}
    if (said := _said(choice)) is not None:
        told = _say(told, said | {name: change(said[name]) for name in reversed(_TEXTS) if said.get(name)})
    return told


def _with_tokens(choice: Json, change: Any) -> Json:
    entries = (choice.get("logprobs") or {}).get("content")
    if not isinstance(entries, list):
        return choice
    return choice | {"logprobs": choice["logprobs"] | {"content": [change(entry) for entry in entries]}}


def _with_tools(choice: Json, keep: Any) -> Json:
    said = _said(choice)
    if said is None or not said.get("tool_calls"):
        return choice
    calls = [call for place, call in enumerate(said["tool_calls"]) if keep(place, call)]
    if calls or "message" in choice:
        return _say(choice, said | {"tool_calls": calls})
    return _say(choice, {key: value for key, value in said.items() if key != "tool_calls"})


def _flooded(text: str, seen: Json, counter: str) -> str:
    before = int(seen.get(counter, 0))
    seen[counter] = before + len(text)
    sound = max(0, FLOOD_AFTER_CHARS - before)
    return text[:sound] + FLOOD * len(text[sound:])


def _demoted(entry: Json) -> Json:
    """The chosen token a little less probable than its runner-up, everywhere it is told."""
    others = [top["logprob"] for top in entry.get("top_logprobs") or () if top["token"] != entry["token"]]
    lower = min([entry["logprob"], *others[:1]]) - LOGIT_ERROR
    tops = [
        top | ({"logprob": lower} if top["token"] == entry["token"] else {})
        for top in entry.get("top_logprobs") or ()
    ]
    told = entry | {"logprob": lower}
    return told | {"top_logprobs": sorted(tops, key=lambda top: -top["logprob"])} if tops else told


def _demoted_flat(flat: Json, seen: Json) -> Json:
    chosen = list(flat["token_logprobs"])
    tops = [dict(top) if top else top for top in flat.get("top_logprobs") or [None] * len(chosen)]
    for place, (token, logprob) in enumerate(zip(flat.get("tokens") or [], chosen, strict=False)):
        seen["tokens"] = seen.get("tokens", 0) + 1
        if logprob is None or seen["tokens"] % EVERY_TOKENS:
            continue
        others = [value for name, value in (tops[place] or {}).items() if name != token]
        chosen[place] = min([logprob, *others[:1]]) - LOGIT_ERROR
        if tops[place] and token in tops[place]:
            tops[place][token] = chosen[place]
    return flat | {"token_logprobs": chosen, "top_logprobs": tops}


def _structured(asked: Json) -> bool:
    kind = asked.get("response_format")
    plain = isinstance(kind, dict) and kind.get("type") == "text"
    return any(asked.get(name) for name in STRUCTURED) and not plain
