"""Put the configuration files of the project's root into the package, where `dial-agent init` finds them."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FILES = ("docker-compose.yml", ".env.example", "compose", "core_config", "kubernetes", "observability")


class WithDeployment(build_py):
    """The package with the files; an editable installation finds them in the clone."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        root, target = Path(__file__).parent, Path(self.build_lib) / "task" / "cli" / "deployment"
        for name in FILES:
            if (root / name).is_dir():
                shutil.copytree(root / name, target / name, dirs_exist_ok=True)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, target / name)


setup(cmdclass={"build_py": WithDeployment})
