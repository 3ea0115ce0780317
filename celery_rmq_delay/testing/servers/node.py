"""The files and the environment of a private RabbitMQ node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Two schedulers without busy waiting, to leave the cores to the tests.
_ERL_ARGS = "+S 2:2 +SDcpu 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"


@dataclass(frozen=True)
class NodeSettings:
    """The settings of a node: its name, its address, its ports and its configuration."""

    node: str
    address: str
    cookie: str
    port: int
    dist_port: int
    epmd_port: int
    management_port: int | None
    plugins: tuple[str, ...]
    config: str

    def write(self, home: Path) -> None:
        """Write the node's files into an empty directory."""
        for folder in ("log", "data", "conf.d"):
            (home / folder).mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)
        (home / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (home / "rabbitmq.conf").write_text(self.conf())
        (home / "rabbitmq-env.conf").touch()

    def conf(self) -> str:
        """Return the text of rabbitmq.conf."""
        lines = [
            f"listeners.tcp.1 = {self.address}:{self.port}",
            "loopback_users = none",  # guest also connects from the network switch of a private network
            "log.console = false",
            "log.file = rabbit.log",
            "disk_free_limit.absolute = 10MB",
        ]
        if self.management_port:
            lines += [f"management.tcp.ip = {self.address}", f"management.tcp.port = {self.management_port}"]
        return "\n".join([*lines, self.config, ""])

    def env(self, home: str, path: str) -> dict[str, str]:
        """Return the whole environment of the node and its tools.

        :param home: the node's directory as the node sees it.
        :param path: the value of PATH.
        """
        distribution = f"-kernel inet_dist_use_interface {{{self.address.replace('.', ',')}}}"
        return {
            "HOME": home,
            "PATH": path,
            "LANG": "C.UTF-8",
            "ERL_CRASH_DUMP": f"{home}/log/erl_crash.dump",
            "ERL_EPMD_ADDRESS": self.address,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the Erlang VM instead of waiting for it
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_CONFIG_FILES": f"{home}/conf.d",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/rabbitmq-env.conf",
            "RABBITMQ_CTL_DIST_PORT_MAX": "65535",
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self.dist_port + 1),
            "RABBITMQ_CTL_ERL_ARGS": distribution,
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_ERL_ARGS} {distribution}",
            # Erlang requires long names for hosts with a dot, and on short ones for those without, such as localhost.
            "RABBITMQ_USE_LONGNAME": str("." in self.node.partition("@")[2]).lower(),
        }
