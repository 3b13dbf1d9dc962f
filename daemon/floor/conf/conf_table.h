/*
 * conf_table.h - every option of the daemon, once.
 *
 * S(section, name, kind, placeholder, default, longest value, doc)    a string
 * N(section, name, kind, unit, default, least, most, doc)             a number
 *
 * Kinds are those of enum conf_kind.  The placeholder of a CHOICE lists its values.
 * Rows of one section of --help and of the man page stand together.
 */
#pragma once

/* clang-format off */
#define CONF_TABLE(S, N)                                                                           \
        S("Cluster", node, TEXT, "NAME", "", 63,                                                   \
          "Name of this node among the peers. Empty: the host name.")                              \
        S("Cluster", peers, LIST, "NAME=HOST:PORT ...", "", 32768,                                 \
          "All nodes of the cluster, this one included, in the same order on every node; at most " \
          "64. New nodes come to the end. Put an IPv6 address in brackets: a=[fd00::1]:7600. "     \
          "Empty: this node alone, with no open port.")                                            \
        S("Cluster", owners, LIST, "NAME[*DEVICES] ...", "", 8192,                                 \
          "Names of the nodes that hold shards at first; the same on every node. Empty: all "      \
          "nodes. DEVICES: how many of its devices a node divides its shards over, 1 to 8. "       \
          "zeroctl(1) changes the owners later; from then on, and for nodes that come to `peers` " \
          "later, the list on record counts.")                                                     \
        N("Cluster", mirror, COUNT, "copies", "0", 0, 1,                                           \
          "1: the next node in the list of owners holds every owner's shards a second time, if "   \
          "there are owners on at least two nodes, so that the loss of one node loses no state; "  \
          "the same on every node. Doubles the memory, and sends 4 more bytes for each parameter " \
          "and step between nodes, less what fetches then find on their own node.")                \
        S("Cluster", key_file, PATH, "FILE", "", 4095,                                             \
          "Key that the nodes of the cluster share: 32 bytes, raw or as 64 hexadecimal digits. "   \
          "Only the owner of the file may have access to it (mode 0600 or 0400). Needed by a "     \
          "cluster of several nodes.")                                                             \
        S("Cluster", key_next_file, PATH, "FILE", "", 4095,                                        \
          "A second key, accepted while the key is being changed.")                                \
        S("Cluster", bulk, CHOICE, "auto|ucx|tcp", "auto", 16,                                     \
          "Path of payloads between nodes. ucx: RDMA or shared memory; tcp: zerod's own TCP "      \
          "connections; auto: UCX if it reaches the peer, otherwise TCP.")                         \
        S("Cluster", tcp_payloads, CHOICE, "authenticated|encrypted|plain", "authenticated", 16,   \
          "How payloads over zerod's own TCP connections are protected. authenticated: a changed " \
          "byte is noticed, and the payload sent again; encrypted: also unreadable for others, and "\
          "UCX, which does not encrypt, is not used; plain: neither, at the least cost. Two nodes " \
          "use the stronger of their settings.")                                                   \
        S("Cluster", ucx_tls, TEXT, "LIST", "", 255,                                               \
          "Transports that UCX may use, as in UCX_TLS. Empty: all except tcp. Use UCX's tcp only " \
          "in closed networks: hostile bytes on its ports crash the daemon.")                      \
        S("Cluster", bulk_gpu, CHOICE, "auto|staged", "auto", 16,                                  \
          "How payloads from and to GPU memory travel between nodes. auto: directly where UCX "    \
          "knows CUDA on both sides and a probe passes, otherwise staged; staged: always through " \
          "host memory.")                                                                          \
        S("Clients", socket, PATH, "FILE", "", 107,                                                \
          "Unix socket for trainers and zeroctl. Empty: $XDG_RUNTIME_DIR/zerod.sock, or "          \
          "/run/zerod/zerod.sock for root and if that variable is not set. A socket that systemd " \
          "passes overrides it.")                                                                  \
        S("Clients", socket_mode, MODE, "MODE", "0666", 4,                                         \
          "Permissions of the socket, octal. The user of a client's process decides which jobs "   \
          "the client may use.")                                                                   \
        N("Clients", session_limit, COUNT, "connections", "1024", 1, 65536,                        \
          "Most connections of clients at once. A sixteenth is kept for root and the user zerod "  \
          "runs as; any other user may have as many as are still free, alone up to one half.")     \
        N("Clients", wait_ms, COUNT, "milliseconds", "60000", 1, 86400000,                         \
          "How long a client's blocking call takes at most, unless the client names a timeout.")   \
        N("Clients", rank_wait_ms, COUNT, "milliseconds", "1800000", 0, 86400000,                  \
          "How long such a call may wait for a rank, beyond wait_ms: counted from the rank's last "\
          "call if its process runs, or from when the first rank waited if it has not come yet. "  \
          "For a rank whose process is stopped or has ended, and for a node that is down, the "    \
          "limit is wait_ms.")                                                                     \
        N("Clients", job_limit, COUNT, "jobs", "16", 1, 4096,                                      \
          "Most jobs of one user; up to 64 jobs on one base count as one. A new job beyond the "   \
          "limit replaces the user's finished job that finished first.")                           \
        S("Monitoring", http, TEXT, "HOST:PORT|FILE", "127.0.0.1:7680", 255,                       \
          "Where zerod answers HTTP: a page for browsers at /, /metrics for Prometheus, /healthz, "\
          "/readyz, /api/ and, with http_token_file, /weights/; zerod(8) lists them. "             \
          "HOST is an IP address, an IPv6 address in brackets, or localhost. A path is a unix "    \
          "socket. What is there is what any local user may see with zeroctl status. An address "  \
          "other than loopback needs http_token_file; without a token put a reverse proxy before " \
          "the loopback address. Empty: off. If the default address is in use zerod warns and "    \
          "starts without; an address that you set must be free.")                                 \
        S("Monitoring", http_token_file, PATH, "FILE", "", 4095,                                   \
          "Token that clients show as \"Authorization: Bearer TOKEN\": 64 hexadecimal digits. "    \
          "Only the owner of the file may have access to it. Read at the start and at SIGHUP. "    \
          "HTTP does not hide the token from the network. The page at / asks for it; /healthz "    \
          "and /readyz need none.")                                                                \
        S("State and memory", state_dir, PATH, "DIRECTORY", "", 4000,                              \
          "Where model states live: on tmpfs, so that they outlast the daemon's process. Empty: "  \
          "$XDG_RUNTIME_DIR/zerod, or /dev/shm/zerod for root and if that variable is not set. A " \
          "job's space is reserved when the job is made; space for new jobs can be taken by any "  \
          "user who may write to the same file system.")                                           \
        S("State and memory", membership_dir, PATH, "DIRECTORY", "", 4000,                         \
          "Where this node keeps its votes on which nodes hold shards, a few bytes: on a disk, so "\
          "that they outlast a reboot. A node alone does not use it. Empty: $STATE_DIRECTORY if "  \
          "set, otherwise /var/lib/zerod for root and $XDG_STATE_HOME/zerod or "                   \
          "~/.local/state/zerod for others.")                                                      \
        S("State and memory", checkpoint_dir, PATH, "DIRECTORY", "", 3000,                         \
          "Directory below which checkpoints are written and read; links in it are not followed. " \
          "Empty: any directory that zerod may write to, but only for root and the user zerod "    \
          "runs as.")                                                                              \
        N("State and memory", checkpoint_memory, SIZE, "bytes", "0", 0, 1ull << 60,                \
          "Most memory for the copy that a checkpoint of a job takes on this node. 0: as much as " \
          "the state, if that fits into three quarters of what the machine and zerod's control "   \
          "group have free. With less memory the next update waits until the rest is on the disk.")\
        N("State and memory", memory_limit, SIZE, "bytes", "0", 0, 1ull << 60,                     \
          "Most memory for the states of all jobs, and for layouts of 1 MiB and more. 0: no "      \
          "limit.")                                                                                \
        N("State and memory", window, SIZE, "bytes", "0", 0, 1ull << 50,                           \
          "Gather window of a job on this node. 0: what its ranks declare that they hold, at most " \
          "all groups.")                                                                           \
        N("State and memory", follow_copies, COUNT, "copies", "3", 0, 16,                             \
          "Most versions of a job's parameters that this node has in memory for clients that "     \
          "follow the job (zero_follow()). 0: nobody follows a job here.")                         \
        N("State and memory", follow_limit, SIZE, "bytes", "0", 0, 1ull << 50,                     \
          "Most host memory for such versions of one user's jobs on this node. 0: no limit.")      \
        N("State and memory", follow_deltas, SIZE, "bytes", "1G", 0, 1ull << 50,                   \
          "Most host memory for the changes between versions of one user's jobs on this node, "    \
          "which go to readers in place of whole parameters. While somebody follows a job, its "   \
          "owners take 2 bytes a parameter of bf16 and fp16, and what was coded. 0: nothing is "   \
          "coded.")                                                                                \
        S("State and memory", follow_by, CHOICE, "auto|deltas|whole", "auto", 16,                  \
          "How later versions come to clients that follow jobs on this node, from other nodes. "   \
          "deltas: what changed, which is the fewest bytes; whole: all parameters; auto: deltas, " \
          "unless they have taken more than twice as long.")                                       \
        N("State and memory", gpu_windows, SIZE, "bytes", "0", 0, 1ull << 50,                      \
          "Most memory of each GPU for the windows of one user's jobs: the groups that their "     \
          "ranks hold, the gradients that they push, what they stash there, and copies of "        \
          "bases. 0: as much as the GPU has.")                                                     \
        N("State and memory", stash_limit, SIZE, "bytes", "0", 0, 1ull << 50,                      \
          "Most host memory for the stashes (activation checkpoints) of one user's jobs on this "  \
          "node. 0: no limit.")                                                                    \
        N("State and memory", base_limit, SIZE, "bytes", "0", 0, 1ull << 50,                       \
          "Most host memory for the bases of one user on this node: frozen weights, of which all " \
          "jobs of the user that read them share one copy. 0: no limit.")                          \
        N("State and memory", reduce_buffers, SIZE, "bytes", "0", 0, 1ull << 50,                   \
          "Buffers of a job for sums and accumulators of gradients, in host memory and on GPUs. "  \
          "0: what the largest group needs.")                                                      \
        S("Computing", device, CHOICE, "auto|host|host:scalar|host:avx2|host:avx512|cuda", "auto", 16,  \
          "What computes. auto: the host, and GPUs if there are any and the CUDA plugin loads; "   \
          "host: never GPUs; cuda: as auto, but zerod does not start without a GPU. host:... "     \
          "chooses an instruction set. All give the same bits.")                                   \
        S("Computing", cuda_plugin, PATH, "FILE", "", 4095,                                        \
          "The plugin for GPUs, zerod-cuda.so. Empty: where it is installed.")                     \
        S("Computing", gpu_collectives, CHOICE, "auto|nccl|copies", "auto", 16,                    \
          "How bytes go between several GPUs of this node. auto: by NCCL if libnccl.so.2 is "      \
          "found, otherwise copied from GPU to GPU; nccl: with several GPUs zerod does not start " \
          "without NCCL; copies: never NCCL. All give the same bits.")                             \
        S("Computing", optimizer, CHOICE, "host|device", "host", 16,                               \
          "Where master weights, moments and gradients live and updates run. host: in state files "\
          "in state_dir, which outlive a crash of the daemon. device: in the memory of this "      \
          "node's GPUs, one for each of its DEVICES (owners); an orderly stop writes the states "  \
          "to state_dir if it has space for them, and a crash loses them. Nodes may differ; both " \
          "give the same bits.")                                                                   \
        N("Computing", threads, COUNT, "threads", "0", 0, 1024,                                    \
          "Compute threads of steps, as many, with a tenth of their weight, of reads, and as many "  \
          "that make states. 0: one for each CPU, at most 8.")                                     \
        N("Computing", chunk, CHUNK, "elements", "0", 0, 65536,                                     \
          "Elements that an update changes and commits at once, a multiple of 128; more where "   \
          "formats take fewer bytes than fp32. 0: as many as take a quarter of the CPU's "        \
          "first-level data cache at 28 bytes for each element, and 384 at least. A job's shards " \
          "keep the value that they were made with. Nodes that share a job may differ.")           \
        S("Running", user, TEXT, "NAME", "zerod", 31,                                              \
          "User, without privilege, that zerod becomes when it is started as root. If the default "\
          "user does not exist zerod stays root. state_dir and membership_dir are made for that "  \
          "user or must belong to that user, and so must the key files. Empty or root: zerod "     \
          "stays root, and writes checkpoints wherever a client names a directory.")               \
        S("Running", log_level, CHOICE, "error|warning|info|debug", "info", 16,                    \
          "The least severe messages that are logged.")                                            \
        S("Running", log_dir, PATH, "DIRECTORY", "", 4000,                                         \
          "Where zerod writes down what took time in a job before the deadline of a rank's call "  \
          "passed, as zeroctl trace does: at most once a minute for each job, and at most 32 "     \
          "files, 8 of them for each user; the oldest go. A line of the log names the file. "      \
          "Empty: $LOGS_DIRECTORY if set, otherwise nothing is written.")                          \
        N("Running", drain_ms, COUNT, "milliseconds", "10000", 0, 600000,                          \
          "How long a stop, or a change of the owners, waits for steps in flight to end. Trainers "\
          "replay steps that do not end by then.")                                                 \
        N("Running", delay_ms, COUNT, "milliseconds", "0", 0, 60000,                               \
          "For tests: every message between nodes waits a random time up to this.")
/* clang-format on */
