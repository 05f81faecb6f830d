"""The checks by group. Each module brings ``CHECKS``; judges are pure, ``run`` asks through a session.

``prompts``    what is asked
``canary``     seconds: floods, markers, prefixes, one tool call, one schema, sampling, acceptance
"""
