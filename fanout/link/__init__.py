"""Client connection of a node to one primary: its session, its replica, and the proof that the replica is complete.

`session` decides and does no I/O; `transport`, `driver` and `link` own the socket, the timer and the task. Users need
`Link` from `fanout.link.link` and the types of `fanout.link.model.status`.
"""
