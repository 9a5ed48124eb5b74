"""Node of several processes: the hub has links, log and HTTP interface, and each worker serves a share of the clients.

`pool` is the hub's side, with the interface of a `Server`; `worker` is the worker's side. They talk over a pair of
sockets (`channel`, `messages`). The Client Identifier decides which worker serves a client (`ownership`); a connection
that another worker accepted is handed over (`client_router`, `relay`).
"""
