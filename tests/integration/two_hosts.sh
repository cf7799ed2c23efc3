#!/usr/bin/env bash
# Two "hosts" on one machine: network namespaces with a cable between them. Call it in a namespace of its own,
#   unshare --net two_hosts.sh FOLDER COMMAND...                      (root)
#   unshare --user --map-root-user --net two_hosts.sh FOLDER COMMAND...
# It runs COMMAND on both, with HOSTS, NODE_RANK and MASTER_ADDR set and the output in FOLDER/host<n>.log, and ends with
# the greater of their exit codes. The namespaces have no names: they are gone with the last process in them.
set -euo pipefail
folder=$1
shift

unshare --net sleep infinity &
other=$! # the process whose namespace is host 1; this script's is host 0
trap 'kill "$other"; wait "$other" || true' EXIT
until [[ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done

ip link add cable0 type veth peer name cable1
ip link set cable1 netns "$other"
ip address add 10.77.0.1/24 dev cable0
ip link set cable0 up
ip link set lo up
inside=(nsenter --net="/proc/$other/ns/net")
"${inside[@]}" ip address add 10.77.0.2/24 dev cable1
"${inside[@]}" ip link set cable1 up
"${inside[@]}" ip link set lo up

export HOSTS=2 MASTER_ADDR=10.77.0.1
NODE_RANK=0 GLOO_SOCKET_IFNAME=cable0 "$@" >"$folder/host0.log" 2>&1 &
first=$!
NODE_RANK=1 GLOO_SOCKET_IFNAME=cable1 "${inside[@]}" "$@" >"$folder/host1.log" 2>&1 &
second=$!
code=0
for host in "$first" "$second"; do
    wait "$host" || code=$(($? > code ? $? : code))
done
exit "$code"
