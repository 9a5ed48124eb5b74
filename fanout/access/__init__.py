"""Access control: authentication of clients, and authorization by topic.

`gate` joins the parts: `rules` decides on topics, `passwords` and `password_checks` on users, `http_hook` asks a
service of the operator. Nothing is imported here, so that `fanout passwd` loads neither the HTTP client nor the
configuration.
"""
