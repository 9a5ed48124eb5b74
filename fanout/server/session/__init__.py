"""Sessions of local clients: subscriptions, messages in both directions, retained delivery, Will Messages."""
