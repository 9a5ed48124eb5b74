"""A node of several processes: the hub holds links, log and HTTP interface, each worker serves a share of its clients.

`fanout.workers.pool` is the hub's side and looks like a `Server` to the node, `fanout.workers.worker` is the other one,
and a pair of sockets is between them (`channel`, `messages`). Which worker serves a client is decided by its Client
Identifier (`ownership`); a connection that was accepted by another one is handed over (`connection_router`, `relay`).
"""
