"""Deployments for tests: a shipped profile with changes, on described hardware."""

import copy
import functools
from dataclasses import replace

from k3ctl.planning.hardware import described
from k3ctl.planning.proposal import Proposal, Workload
from k3ctl.profiles.loader import load
from k3ctl.profiles.resolve import ResolvedConfig, resolve


@functools.cache
def resolved_profile(name) -> ResolvedConfig:
    """The profile as it is; do not change what it holds."""
    return resolve(load(name))


def config(base, changes=None, env=None) -> ResolvedConfig:
    """The resolved ``base`` with dotted ``changes`` of its arguments (None removes) and variables."""
    resolved = resolved_profile(base)
    args = copy.deepcopy(dict(resolved.args))
    for key, value in (changes or {}).items():
        *parents, last = key.split(".")
        target = args
        for part in parents:
            target = target.setdefault(part, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return replace(resolved, args=args, env={**resolved.env, **(env or {})})


def deployment(base="gb300-tp16", changes=None, env=None, hardware=None, **workload) -> Proposal:
    """A deployment of ``base`` with changes; ``hardware`` defaults to what the profile requires."""
    resolved = config(base, changes, env)
    requires = resolved.profile.requires
    if hardware is None and requires.gpu:
        hardware = f"{requires.gpu[0]}:{requires.gpus}"
    found = described(hardware) if isinstance(hardware, str) else hardware
    return Proposal(resolved, found, Workload(**workload))
