#!/bin/bash
# Start-up script of a cloud VM with Debian 12, as root, at each boot: the name, the interface, the kernel's
# settings. Give it to each VM: as the metadata "startup-script", or in /var/lib/cloud/scripts/per-boot (what
# clouds call user data, cloud-init runs at the first boot alone).
#
# Between the VMs TCP must be allowed on all ports (a rule of the security group for its own members), and ssh
# without a password from the first to the others: both are the cloud's settings.
set -euo pipefail

# The interface that leads to the other VMs: where the default route leaves, unless you know better.
interface=${INTERFACE:-$(ip -4 route show default | awk '{print $5; exit}')}
address=$(ip -4 -o address show dev "$interface" | awk '{sub("/.*", "", $4); print $4; exit}')

# Debian says that a machine's own name is 127.0.1.1, where no other VM finds it; an address of its own that
# a former boot has written may be another VM's by now. (A new file, renamed, would not do: the file may be a
# mount.)
hosts=$(grep -vE "^127\.0\.1\.1\s|^[0-9.]+\s+$(hostname)\s*$" /etc/hosts || true)
grep -qE "^$address\s.*\b$(hostname)\b" <<<"$hosts" || hosts+=$'\n'"$address $(hostname)"
printf '%s\n' "$hosts" >/etc/hosts

# What horovodrun.sh, tss join and the doctor go by; horovodrun itself has --network-interfaces.
cat >/etc/profile.d/tss.sh <<END
export HOROVOD_GLOO_IFACE=$interface
export NCCL_SOCKET_IFNAME=$interface
END

# One connection must be able to fill the link: 64 MiB is more than 25 Gbit/s times 10 ms. Training sends in
# bursts, after which a connection must not start slowly again. Gloo opens many ports.
cat >/etc/sysctl.d/90-tss.conf <<END
net.core.rmem_max = 67108864
net.core.wmem_max = 67108864
net.ipv4.tcp_rmem = 4096 131072 67108864
net.ipv4.tcp_wmem = 4096 131072 67108864
net.ipv4.tcp_slow_start_after_idle = 0
net.ipv4.tcp_mtu_probing = 1
net.ipv4.ip_local_port_range = 32768 60999
END
sysctl --quiet --load /etc/sysctl.d/90-tss.conf
timedatectl set-ntp true # clocks that agree: logs and traces of several VMs line up

# tf_sparse_strategy with what it needs, from the git URL in REPOSITORY; an image of your own saves the minutes.
if [[ -n ${REPOSITORY:-} ]]; then
    if [[ ! -d /opt/project ]]; then
        apt-get update
        apt-get install --yes git make
        rm -rf /opt/project.partial
        git clone "$REPOSITORY" /opt/project.partial
        mv /opt/project.partial /opt/project
    fi
    make -C /opt/project setup # of seconds where it is done; a boot that was cut short is made up for
fi
source /etc/profile.d/tss.sh
PATH=/opt/project/.venv/bin:$PATH
if type -P tss >/dev/null; then
    tss doctor # of this VM alone; what it finds is in the boot's log
else
    echo "tss is not in $PATH: activate the image's own environment, and let 'tss doctor' examine this VM." >&2
fi
