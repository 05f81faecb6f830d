"""Adapt a profile to an expected concurrency: as many drafts as keep its decode steps specialized."""

from __future__ import annotations

from k3ctl.planning import budget
from k3ctl.planning.proposal import Workload
from k3ctl.profiles.schema import Profile


def variants(profile: Profile, workload: Workload) -> tuple[dict[str, str], ...]:
    """Overrides worth comparing for ``workload``, the profile as it is first.

    Above the profile's own ``max_num_seqs``: a specialized profile gets the most drafts with which its steps
    still hold 64 rows or fewer, another one just admits the requests.
    """
    concurrency, limit = workload.concurrency, profile.decode.max_num_seqs
    if concurrency is None or limit is None or concurrency <= limit or not profile.requires.gpus:
        return ({},)
    admitted = {"max_num_seqs": str(concurrency)}
    if profile.decode.backend != "latency_specialized" or profile.decode.speculator is None:
        return {}, admitted
    drafts = budget.most_drafts(concurrency) or 0
    key = "speculative_config.num_speculative_tokens" if drafts else "speculative_config"
    return {}, admitted | {key: str(drafts) if drafts else "none"}
