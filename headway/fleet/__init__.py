"""Processes that are placed, watched and replaced on the nodes of a cluster: engines first, relays and dispatchers too.

Tokens do not pass through here. A fleet knows a gateway only as `/admin`: there it registers the URLs of its engines,
and reads which of them have no streams left. Only ray.py knows Ray.
"""
