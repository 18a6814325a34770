"""TLS to the store's server, from the options of its address that libpq has too."""

import ssl

from sqlalchemy import URL

from task.errors import SettingsError

OPTIONS = ("ssl", "sslmode", "sslrootcert")
TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")  # as libpq has them


def tls_of(address: URL) -> dict[str, str | ssl.SSLContext]:
    """The driver's argument `ssl`, if any is needed. Raises `SettingsError`: an unknown option, or no such file."""
    options = {name: str(value) for name, value in address.query.items()}
    for name in options.keys() - set(OPTIONS):
        known = ", ".join(OPTIONS)
        raise SettingsError(f"AGENT_STORE__URL: the option {name!r} is not known; {known} are. Correct it.")
    mode, root = options.get("sslmode", options.get("ssl")), options.get("sslrootcert")
    if mode is not None and mode not in TLS_MODES:
        raise SettingsError(f"AGENT_STORE__URL: there is no sslmode {mode!r}; there are {', '.join(TLS_MODES)}.")
    if mode not in ("verify-ca", "verify-full") and (root is None or mode != "require"):
        return {"ssl": mode} if mode is not None else {}
    try:
        # Without `sslrootcert` the system's authorities are trusted: the driver would look for a file of libpq's.
        context = ssl.create_default_context(cafile=root)
    except OSError as error:
        raise SettingsError(
            f"AGENT_STORE__URL: sslrootcert {root} cannot be read: {error.strerror}. Correct it."
        ) from None
    context.check_hostname = mode == "verify-full"
    return {"ssl": context}
