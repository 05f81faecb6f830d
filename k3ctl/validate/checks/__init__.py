"""The checks by group. Each module brings ``CHECKS``; judges are pure, ``run`` asks through a session.

``prompts``     what is asked
``canary``      seconds: floods, markers, prefixes, one tool call, one schema, acceptance
``sampling``    tokens against the distributions that the server itself tells; seeds
``requests``    stop strings, log probabilities, hanging up
``structured``  answers of a form, tool calls
``equality``    batch, prefix cache, streaming, drafts, reading again: none of them changes an answer
``context``     long contexts are read whole; needles
"""
