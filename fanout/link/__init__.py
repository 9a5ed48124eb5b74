"""The link: a node's client connection to one primary, its session, and the proof that its replica is whole.

`session` decides (core, with `states`, `converter`, `control` and `proof`); `connection` and `link` own the
socket, the task and the time. Users need `Link` from `fanout.link.link` and the types of
`fanout.link.model.status`.
"""
