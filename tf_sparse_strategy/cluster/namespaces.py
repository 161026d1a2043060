"""Nodes on one machine: Linux namespaces joined by links of a given speed through a switch.

A node has its own network, host name, hosts file and processes; the switch is a bridge in a network
namespace of its own. Nothing has a name outside: each namespace lives as long as the process that
holds it, and that one as long as a pipe from here. Whatever ends this process, SIGKILL included, the
kernel then ends every process on the nodes and removes the links; there is nothing to clean up later,
and any number of networks exist side by side.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import ipaddress
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from tf_sparse_strategy.cluster.rate import DEFAULT_BUFFER, shaper

INTERFACE = "eth0"  # the name of a node's only link
MOST_NODES = 250
_SUBNET = ipaddress.ip_network("10.0.0.0/24")  # of every network: they do not see each other
_NODE_FLAGS = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_CONGESTION_CONTROLS = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_SBIN = os.pathsep.join(["/usr/sbin", "/sbin"])  # not on everybody's PATH, not even on every root's
_PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
# What a fresh network namespace needs; without IPv6's chatter the counters count the job alone.
_QUIET = f"""PATH="$PATH:{_SBIN}"
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip link set lo up"""
# The hosts file lies in a memory of its own, so that it vanishes with the node.
_NODE_SETUP = f"""set -e
mount -t tmpfs tmpfs /sys
printf %s "$2" > /sys/hosts
mount --bind /sys/hosts /etc/hosts
umount --lazy /sys
mount -t sysfs sysfs /sys
echo "$1" > /proc/sys/kernel/hostname
set +e
{_QUIET}"""


class NetlabError(RuntimeError):
    """The emulated cluster cannot be made here; the message is one sentence with the remedy."""


@dataclasses.dataclass(frozen=True)
class LinkBytes:
    """What crossed one node's link, Ethernet headers included."""

    node: str
    sent: int  # by the node
    received: int

    def __sub__(self, earlier: LinkBytes) -> LinkBytes:
        return LinkBytes(self.node, self.sent - earlier.sent, self.received - earlier.received)


def check_machine() -> None:
    """Raises NetlabError when this machine cannot hold a network; the sentence says what to do."""
    if sys.platform != "linux":
        raise NetlabError("netlab needs Linux's network namespaces: run it in a Linux machine.")
    if os.geteuid() != 0:
        raise NetlabError(
            "netlab needs root to make network namespaces: run it as `sudo -E $(command -v tss) netlab ...`, "
            "and name the program behind -- by its path, e.g. $(command -v python)."
        )
    trial = [_tool("tc"), "qdisc", "add", "dev", "lo", "root", *shaper(10**6, DEFAULT_BUFFER).split()]
    probe = subprocess.run(
        [_tool("unshare"), *_NODE_FLAGS, *trial], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        reason = " ".join(probe.stderr.split())
        if probe.stderr.startswith("unshare"):
            raise NetlabError(
                f"this machine forbids new namespaces ({reason}): in a container, add the "
                "capability SYS_ADMIN (`docker run --privileged`)."
            )
        raise NetlabError(
            f"the kernel lacks tc's shaper ({reason}): load it with `modprobe sch_tbf`."
        )


def _tool(name: str) -> str:
    """Returns the path of a program."""
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + os.pathsep + _SBIN)
    if path is None:
        raise NetlabError(f"netlab needs {name!r}: run `apt-get install {_PACKAGES[name]}`.")
    return path


class _Space:
    """Namespaces held by a process that ends when its pipe from here closes."""

    def __init__(self, flags: tuple[str, ...], setup: str, *arguments: str):
        script = f"{setup} && echo ready && exec cat"
        self._holder = subprocess.Popen(
            [_tool("unshare"), *flags, "sh", "-c", script, "netlab", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
        if self._holder.stdout.readline() != "ready\n":
            reason = " ".join(self._holder.stderr.read().split())
            self.close()
            raise NetlabError(f"a namespace could not be made: {reason}.")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def batch(self, tool: str, lines: list[str]) -> None:
        """Has `ip` or `tc` do what the lines say, in this network."""
        result = subprocess.run(
            [_tool("nsenter"), f"--net=/proc/{self.pid}/ns/net", _tool(tool), "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            reason = " ".join(result.stderr.split())
            raise NetlabError(f"`{tool} -batch -` failed in a namespace: {reason}.")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Node(_Space):
    """One machine of the network."""

    def __init__(self, name: str, address: str, hosts: str, tcp: str):
        self.name, self.address, self._tcp = name, address, tcp
        super().__init__(_NODE_FLAGS, _NODE_SETUP, name, hosts)

    def connect(self, queue: str) -> None:
        """Takes the interface, which is there by now, into use; `queue` is how tc names its shaper."""
        own = f"src {self.address} congctl {self._tcp}"
        lines = [
            f"addr add {self.address}/{_SUBNET.prefixlen} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            # By routes: for a whole namespace the kernel takes only what the machine's administrator allows.
            f"route replace {_SUBNET} dev {INTERFACE} {own}",
            f"route replace local {self.address} dev {INTERFACE} table local {own}",
        ]
        self.batch("ip", lines)
        self.batch("tc", [f"qdisc add dev {INTERFACE} root {queue}"])

    def command(self, *command: str) -> list[str]:
        """Returns the command that runs `command` on this node, in the directory of the caller."""
        spaces = {"net": "net", "uts": "uts", "mount": "mnt", "pid": "pid_for_children"}
        enter = [f"--{name}=/proc/{self.pid}/ns/{file}" for name, file in spaces.items()]
        return [_tool("nsenter"), *enter, "env", f"--chdir={os.getcwd()}", *command]

    def kill_all(self) -> None:
        """Ends every process on this node."""
        enter = f"--pid=/proc/{self.pid}/ns/pid_for_children"
        subprocess.run(
            [_tool("nsenter"), enter, "sh", "-c", "kill -9 -1"], capture_output=True, check=False
        )

    def within_network(self, function: Callable):
        """Returns `function()`, called in this process but with the sockets of this node."""

        def enter_and_call():
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{self.pid}/ns/net") as namespace:
                if libc.setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter the network of {self.name}")
            return function()

        # A thread of its own: a network namespace is a property of threads.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(enter_and_call).result()


class Network:
    """M nodes, each joined to a switch by a link of `rate` bits per second in each direction.

    Args:
      nodes: M, from 1 to 250. They are called node0, node1, ... and know each other by these names.
      rate: bits per second, Ethernet headers included.
      buffer: seconds of traffic that a port of the switch, or a node, holds; packets beyond are lost.
      tcp: the nodes' congestion control.

    Raises:
      NetlabError: the machine cannot hold it.
      ValueError: `nodes` or `buffer` is out of range, or the kernel does not know `tcp`.
    """

    def __init__(self, nodes: int, rate: int, buffer: float, tcp: str):
        if not 1 <= nodes <= MOST_NODES:
            raise ValueError(f"nodes={nodes} is not between 1 and {MOST_NODES}.")
        queue = shaper(rate, buffer)
        check_machine()
        known = _CONGESTION_CONTROLS.read_text().split()
        if tcp not in known:
            raise ValueError(
                f"tcp={tcp!r} is not among the congestion controls that this kernel has loaded, "
                f"{', '.join(known)}: choose one of these, or load it: `modprobe tcp_{tcp}`."
            )
        self._opened = contextlib.ExitStack()
        with self._opened:  # closed here if anything fails
            self._switch = self._open(_Space(("--net",), _QUIET))
            self.nodes = [self._open(node) for node in _make_nodes(nodes, tcp)]
            self._connect(queue)
            self._opened = self._opened.pop_all()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process on the nodes and removes them."""
        self._opened.close()

    def _open(self, space):
        self._opened.callback(space.close)
        return space

    def _connect(self, queue: str) -> None:
        lines = ["link add switch type bridge mcast_snooping 0", "link set switch up"]
        for node in self.nodes:
            lines += [
                f"link add {node.name} type veth peer name {INTERFACE} netns {node.pid}",
                f"link set {node.name} master switch up",
            ]
        self._switch.batch("ip", lines)
        self._switch.batch("tc", [f"qdisc add dev {node.name} root {queue}" for node in self.nodes])
        for node in self.nodes:
            node.connect(queue)

    def cut(self, node: int) -> None:
        """Takes a node off the network without a trace: its frames, and those to it, are lost."""
        self._switch.batch("ip", [f"link set {self.nodes[node].name} nomaster"])

    def mend(self, node: int) -> None:
        """Undoes `cut`."""
        self._switch.batch("ip", [f"link set {self.nodes[node].name} master switch"])

    def traffic(self) -> list[LinkBytes]:
        """Bytes that crossed each node's link so far, counted at the switch."""
        carried = interface_bytes(self._switch.pid)
        return [LinkBytes(node.name, *reversed(carried[node.name])) for node in self.nodes]


def interface_bytes(process: int | str = "self") -> dict[str, tuple[int, int]]:
    """(bytes sent, bytes received) by each network interface that a process sees, headers included."""
    lines = pathlib.Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
    counters = {name.strip(): counts.split() for name, _, counts in (line.partition(":") for line in lines)}
    return {name: (int(counts[8]), int(counts[0])) for name, counts in counters.items()}


def _make_nodes(number: int, tcp: str) -> Iterator[Node]:
    addresses = {f"node{i}": str(_SUBNET[i + 1]) for i in range(number)}
    hosts = "127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for name, a in addresses.items())
    for name, address in addresses.items():
        yield Node(name, address, hosts, tcp)
