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
          "64. An IPv6 address stands in brackets: a=[fd00::1]:7600. Empty: this node alone, and " \
          "no port is opened.")                                                                    \
        S("Cluster", owners, LIST, "NAME[*DEVICES] ...", "", 8192,                                 \
          "Names of the nodes that hold shards at first; the same on every node. Empty: all "      \
          "nodes. DEVICES: a node's shards are divided over so many of its devices, 1 to 8. "      \
          "zeroctl(1) changes them later.")                                                        \
        N("Cluster", mirror, COUNT, "copies", "0", 0, 1,                                           \
          "1: every owner's shards are held a second time, by the next node in the list of "       \
          "owners, where these are on two nodes or more, so that the loss of a node loses "        \
          "nothing; the same on every node. Costs as much memory again, and 4 bytes a parameter "  \
          "and step between nodes, less what fetches then find on their own.")                     \
        S("Cluster", key_file, PATH, "FILE", "", 4095,                                             \
          "Key that the nodes of the cluster share: 32 bytes, raw or as 64 hexadecimal digits. "   \
          "Nobody but the owner of the file may have access to it (mode 0600 or 0400). Needed "    \
          "where there is more than one node.")                                                    \
        S("Cluster", key_next_file, PATH, "FILE", "", 4095,                                        \
          "A second key that is accepted while the key is being changed.")                         \
        S("Cluster", bulk, CHOICE, "auto|ucx|tcp", "auto", 16,                                     \
          "Path of payloads between nodes. ucx: RDMA or shared memory; tcp: own TCP connections; " \
          "auto: UCX where it reaches the peer, else TCP.")                                        \
        S("Cluster", tcp_payloads, CHOICE, "authenticated|encrypted|plain", "authenticated", 16,   \
          "How payloads over zerod's own TCP connections are protected. authenticated: a changed " \
          "byte is noticed, and the payload sent again; encrypted: nobody can read them either, "  \
          "and UCX, which does not encrypt, is not used; plain: neither, at the least cost. Of "   \
          "two nodes the stronger setting holds.")                                                 \
        S("Cluster", ucx_tls, TEXT, "LIST", "", 255,                                               \
          "Transports that UCX may use, as in UCX_TLS. Empty: all but tcp. UCX's tcp opens ports " \
          "that do not survive hostile bytes: only for closed networks.")                          \
        S("Cluster", bulk_gpu, CHOICE, "auto|staged", "auto", 16,                                  \
          "How payloads from and to GPU memory travel between nodes. auto: directly where UCX "    \
          "knows CUDA on both sides and a probe passes, else staged; staged: always by way of "    \
          "host memory.")                                                                          \
        S("Clients", socket, PATH, "FILE", "", 107,                                                \
          "Unix socket for trainers and zeroctl. Empty: $XDG_RUNTIME_DIR/zerod.sock, or "          \
          "/run/zerod/zerod.sock for root and where that variable is not set. A socket passed by " \
          "systemd goes first.")                                                                   \
        S("Clients", socket_mode, MODE, "MODE", "0666", 4,                                         \
          "Permissions of the socket, octal. Who may touch which job is decided by the user of "   \
          "the client's process.")                                                                 \
        N("Clients", session_limit, COUNT, "connections", "1024", 1, 65536,                        \
          "Most connections of clients at once. A sixteenth is kept for root and the user zerod "  \
          "runs as; another user may have as many as are left free, alone up to one half.")        \
        N("Clients", wait_ms, COUNT, "milliseconds", "60000", 1, 86400000,                         \
          "How long a blocking call of a client takes at most, if the client names no timeout.")   \
        N("Clients", rank_wait_ms, COUNT, "milliseconds", "1800000", 0, 86400000,                  \
          "How long such a call waits for a rank, beyond wait_ms: for one whose process runs, "    \
          "since that rank's last call; for one that has not come, since the first rank waits. "   \
          "A rank whose process is stopped or has ended, and a node that is down, are waited for " \
          "no longer than wait_ms.")                                                               \
        N("Clients", job_limit, COUNT, "jobs", "16", 1, 4096, "Most jobs of one user. A new job beyond it takes the place of the user's finished job that finished first.")            \
        S("State and memory", state_dir, PATH, "DIRECTORY", "", 4000,                              \
          "Where model states live: on tmpfs, outlasting the daemon's process. Empty: "            \
          "$XDG_RUNTIME_DIR/zerod, or /dev/shm/zerod for root and where that variable is not "     \
          "set. A job's room is reserved when it is made; that for new jobs any user can take "     \
          "who may write to the same file system.")                                                                                  \
        S("State and memory", view_dir, PATH, "DIRECTORY", "", 4000,                               \
          "Where this node keeps how it has voted on which nodes hold shards, a few bytes: on a "  \
          "disk, outlasting the machine. Not used by a node alone. Empty: $STATE_DIRECTORY if "    \
          "set; else /var/lib/zerod for root, $XDG_STATE_HOME/zerod or ~/.local/state/zerod for "  \
          "others.")                                                                               \
        S("State and memory", checkpoint_dir, PATH, "DIRECTORY", "", 3000,                         \
          "Directory below which checkpoints are written and read; links in it are not followed. " \
          "Empty: any directory that zerod may write, but only for root and the user zerod runs "  \
          "as.")                                                                                   \
        N("State and memory", checkpoint_memory, SIZE, "bytes", "0", 0, 1ull << 60,                \
          "Most memory for the copy that a checkpoint of a job takes on this node. 0: as much as " \
          "the state, while three quarters of the free memory hold it. With less the next update " \
          "waits until the rest is on the disk.")                                                  \
        N("State and memory", memory_limit, SIZE, "bytes", "0", 0, 1ull << 60,                     \
          "Most memory for the states of all jobs, and for layouts of 1 MiB and more. 0: no limit.")                                  \
        N("State and memory", window, SIZE, "bytes", "0", 0, 1ull << 50,                           \
          "Gather window of a job on this node. 0: what its ranks declare that they hold.")        \
        N("State and memory", gpu_windows, SIZE, "bytes", "0", 0, 1ull << 50,                      \
          "Most memory of each GPU for the windows of one user's jobs: the groups that their "     \
          "ranks hold, and the gradients that they push. 0: as much as it has.")                   \
        N("State and memory", reduce_buffers, SIZE, "bytes", "0", 0, 1ull << 50,                   \
          "Buffers of a job for sums and accumulators of gradients, in host memory and on GPUs. 0: "   \
          "as needed by the largest group.")                                                       \
        S("Computing", device, CHOICE, "auto|host|host:scalar|host:avx2|host:avx512|cuda", "auto", 16,  \
          "What computes. auto: the host, and GPUs where there is one and the CUDA plugin can be " \
          "loaded; host: no GPU is looked for; cuda: not without a GPU. host:... asks for one "    \
          "instruction set. All give the same bits.")                                              \
        S("Computing", cuda_plugin, PATH, "FILE", "", 4095,                                        \
          "The plugin by which GPUs are used, zerod-cuda.so. Empty: where it is installed.")                                                                      \
        S("Computing", gpu_collectives, CHOICE, "auto|nccl|copies", "auto", 16,                    \
          "How bytes go between several GPUs of this node. auto: by NCCL where libnccl.so.2 is "   \
          "found, else copied from GPU to GPU; nccl: no start without it where there are several " \
          "GPUs; copies: it is not loaded. All give the same bits.")                                                       \
        S("Computing", optimizer, CHOICE, "host|device", "host", 16,                               \
          "Where master weights, moments and gradients live, and updates run. host: state files in " \
          "state_dir, which outlive a crash of the daemon. device: the memory of this node's "     \
          "GPUs, one for each of its DEVICES (owners); an orderly stop writes the states to "      \
          "state_dir, if that has room, and a crash loses them. Nodes need not have the same; "    \
          "all give the same bits.")               \
        N("Computing", threads, COUNT, "threads", "0", 0, 1024,                                    \
          "Compute threads. 0: one for each CPU, at most 8.")                                      \
        N("Computing", chunk, CHUNK, "elements", "0", 0, 65536,                                     \
          "Elements that an update changes and commits at once, a multiple of 128. 0: as many as " \
          "take a quarter of the CPU's first-level data cache at 28 bytes an element, which is "   \
          "384 for 48 KiB, and 256 for 32 KiB or where the CPU reports no size. A job's shards "   \
          "keep the value that they were made with; nodes that share a job need not have the "     \
          "same.")                                                                                 \
        S("Running", user, TEXT, "NAME", "zerod", 31,                                              \
          "User that zerod goes on as when it is started as root, without privilege; if there is " \
          "no user of the default's name, it stays root. state_dir and view_dir are made for "     \
          "that user, or must belong to that user, as must the key files. Empty or root: zerod "   \
          "stays root, and writes checkpoints wherever a client names a directory.")               \
        S("Running", log_level, CHOICE, "error|warning|info|debug", "info", 16,                    \
          "The least grave messages that are written.")                                            \
        N("Running", drain_ms, COUNT, "milliseconds", "10000", 0, 600000,                          \
          "How long a stop, or a change of the owners, waits for steps in flight to end; what "    \
          "does not end by then is replayed by the trainers.")                                     \
        N("Running", delay_ms, COUNT, "milliseconds", "0", 0, 60000,                               \
          "For tests: every message between nodes waits a random time up to this.")
/* clang-format on */
