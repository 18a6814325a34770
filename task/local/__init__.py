"""The stand-ins that `dial-agent up` brings along: a DIAL Core and a model."""
