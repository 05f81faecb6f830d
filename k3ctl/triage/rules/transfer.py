"""KV transfer between prefill and decode."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 6, 30)
_FAIL_OPEN = "https://github.com/vllm-project/vllm/issues/52234"
_SUSPECT = (
    "on hybrid models such as Kimi K3 a failed receive is not refused: answers since then may be garbage with HTTP "
    "200, and "
    "kv_load_failure_policy=fail does not help"
)

RULES = (
    TriageRule(
        id="kv-wrong-engine",
        title="KV handshake: another engine answers than the one that was expected ({expected})",
        cause=f"the prefill was restarted, or two engines announce the same side channel; {_SUSPECT}",
        action="set VLLM_NIXL_SIDE_CHANNEL_HOST to each node's own address (and a port of its own per engine), "
        "then restart the "
        "decode engine and the router so that they forget the old engine",
        source=f"https://github.com/vllm-project/vllm/issues/27083, {_FAIL_OPEN}; vLLM 0.33.0, nixl/base_worker.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"engine ID mismatch\. Expected (?P<expected>[\w\-]+),\s*received (?P<received>[\w\-]+)",),
        leads_to=("kv-handshake-failed", "kv-transfer-lost", "kv-blocks-expired"),
        unlike="`kv-incompatible`: the right engine with other settings; `kv-transfer-lost`: the handshake had "
        "worked",
    ),
    TriageRule(
        id="kv-incompatible",
        title="KV handshake: prefill and decode are configured differently",
        cause="their compatibility hashes differ: version of vLLM, model, data types, cache layout or attention "
        "backend; "
        "both sides must agree",
        action="start both sides from the same image and profile; compare `k3ctl plan` of both",
        source="https://github.com/vllm-project/vllm/pull/29503; vLLM 0.33.0, nixl/base_worker.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"NIXL compatibility hash mismatch",
            r"Failed to decode Nixl(?:HandshakePayload|AgentMetadata)",
            r"Hybrid MLA\+Mamba NIXL transfers require matching DCP sizes",
            r"KV group count mismatch",
            r"Packed KV block rows differ between P and D",
        ),
        leads_to=("kv-handshake-failed", "kv-transfer-lost", "kv-blocks-expired"),
        unlike="`kv-wrong-engine`: the identity differs, not the settings",
    ),
    TriageRule(
        id="kv-handshake-failed",
        title="KV handshake with the prefill failed",
        cause=f"the peer could not be reached or refused: wrong address, a closed port, or it is still starting; "
        f"{_SUSPECT}",
        action="reach the peer's side channel from this host (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT), start it "
        "first, then "
        "restart the decode engine",
        source=f"https://github.com/vllm-project/vllm/issues/50765, {_FAIL_OPEN}",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"NIXL transfer failure: (?:push_|push_reg_)?handshake\w*failed",
            r"Handshake failed for request",
            r"Error registering .* with bootstrap server",
        ),
        leads_to=("kv-transfer-lost", "kv-blocks-expired"),
        unlike="`kv-transfer-lost`: transfers had worked before",
    ),
    TriageRule(
        id="kv-transfer-lost",
        title="KV transfer failed{code}: the peer is gone",
        cause=f"the connector does not connect again to a peer that it lost; {_SUSPECT}",
        action="restart the decode engine (the prefill too, if it still holds leases), and treat every answer "
        "since {since} as "
        "suspect; no retry heals it",
        source=f"{_FAIL_OPEN}, https://github.com/smg-project/smg/issues/2382",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?P<code>NIXL_ERR_(?:REMOTE_DISCONNECT|BACKEND|NOT_FOUND))",
            r"NIXL transfer failure: (?P<code>transfer_\w+|notification_failed|push_\w+)",
            r"nixl(?P<code>RemoteDisconnect|NotFound|Backend)Error",
            r"no specified or potential backend could send the inter-agent(?P<code>)",
            r"pulling kv_caches for .* failed(?P<code>)",
            r"Error (?:in Mooncake sender|processing Mooncake xfer|in _sender_worker)(?P<code>)",
            r"Sending to \S+ failed \(ret=(?P<code>[\w\-]+)\)",
        ),
        leads_to=("kv-blocks-expired",),
        unlike="`kv-wrong-engine` and `kv-handshake-failed`: no transfer ever worked; `kv-blocks-expired` alone: "
        "slow, not gone",
    ),
    TriageRule(
        id="kv-blocks-expired",
        title="the prefill gave up KV blocks that nobody fetched within {seconds} s",
        cause="the decode side did not come for them: it is overloaded, or the router sent the request elsewhere",
        action="look at the decode engine's queue and log at this time; raise the lease (kv_lease_duration) only "
        "if it is slow",
        source="vLLM 0.33.0, nixl/base_worker.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Releasing expired KV blocks for request .*? within (?P<seconds>\d+) seconds",
            r"Request \S+ timed out after (?P<seconds>\d+) seconds without being sent",
            r"expired before sending on P side(?P<seconds>)",
        ),
        severity="warning",
    ),
)
