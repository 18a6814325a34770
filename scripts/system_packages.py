"""Install the Debian packages that system tests use, where the user may do so; elsewhere list the missing ones."""

import os
import shutil
import subprocess
import sys

# Command that a test calls -> Debian package that contains it.
PACKAGES: dict[str, str] = {
    "chromium": "chromium",
    "bwrap": "bubblewrap",
    "faketime": "faketime",
    "git": "git",
    "haproxy": "haproxy",
    "ip": "iproute2",
    "nginx": "nginx-light",
    "pg_ctlcluster": "postgresql",  # its server is off the PATH in Debian
    "redis-server": "redis-server",
    "tesseract": "tesseract-ocr",
}


def main() -> int:
    missing = sorted({package for command, package in PACKAGES.items() if shutil.which(command) is None})
    if not missing:
        return 0
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"Tests that need these Debian packages will fail: {' '.join(missing)}", file=sys.stderr)
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=True)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
