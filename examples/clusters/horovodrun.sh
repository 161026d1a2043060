#!/bin/bash
# A job over ssh, started on one of its machines:
#
#   HOSTS=vm1:4,vm2:4 examples/clusters/horovodrun.sh python train.py
#
# HOSTS: machines and their workers. INTERFACE, or HOROVOD_GLOO_IFACE: the network interface, the same name on
# all; without it horovodrun looks for one by which all reach each other.
set -euo pipefail

HOSTS=${HOSTS:-vm1:4,vm2:4}
INTERFACE=${INTERFACE:-${HOROVOD_GLOO_IFACE:-}} # which horovodrun itself does not look at
workers=$(tr , '\n' <<<"$HOSTS" | awk -F: '{n += $2} END {print n}')
options=(--gloo -np "$workers" -H "$HOSTS")
if [[ -n $INTERFACE ]]; then
    options+=(--network-interfaces "$INTERFACE")
    export HOROVOD_GLOO_IFACE=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE # for the doctor
fi

tss doctor -H "$HOSTS"
exec horovodrun "${options[@]}" "$@"
