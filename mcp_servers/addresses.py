"""Which addresses belong to the public internet."""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# What `is_global` lets through although it leads, or may lead, inside: translated, tunnelled and test addresses, and
# 168.63.129.16, at which Azure serves the machine that asks.
_FORBIDDEN = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "168.63.129.16/32", "192.0.2.0/24", "192.88.99.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "64:ff9b::/96", "64:ff9b:1::/48",
        "100::/64", "2001::/32", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10", "::/96",
    )
]  # fmt: skip


def is_public(text: str) -> bool:
    """Whether the address belongs to the public internet, whatever it is wrapped in."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    return address.is_global and not special and not any(address in network for network in _FORBIDDEN)
