#!/bin/bash
# A job that Open MPI starts; Horovod itself needs no MPI:
#
#   HOSTS=vm1:4,vm2:4 RENDEZVOUS=10.0.0.1:29400 examples/clusters/mpirun.sh python train.py
#
# HOSTS: machines and their workers. RENDEZVOUS: an address of the first machine that the others reach,
# and a free port there; its interface is used by all, unless HOROVOD_GLOO_IFACE names another.
set -euo pipefail

HOSTS=${HOSTS:-vm1:4,vm2:4}
RENDEZVOUS=${RENDEZVOUS:-10.0.0.1:29400}
workers=$(tr , '\n' <<<"$HOSTS" | awk -F: '{n += $2} END {print n}')
# Without binding: a worker uses as many cores as TensorFlow is told to. By slot: ranks follow the machines.
start=(mpirun -np "$workers" -H "$HOSTS" --bind-to none --map-by slot -x PATH)
for name in $(compgen -e | grep -E '^(TF_|HOROVOD_|NCCL_|TSS_|KERAS_(BACKEND|HOME)$|CUDA_VISIBLE_DEVICES$|PYTHON(PATH|HASHSEED)$)'); do
    start+=(-x "$name")
done

"${start[@]}" tss join --rendezvous "$RENDEZVOUS" -- tss doctor
exec "${start[@]}" tss join --rendezvous "$RENDEZVOUS" -- "$@"
