#!/usr/bin/env python3
"""bench-load [--repeat N] [--json FILE] [--mib N] [--directory DIRECTORY]

What a safetensors file loads at, from the disk into the planes of one daemon: `zeroctl import`, from its start to its end,
and zero_put_file() in the process of a rank, for files of fp32, bf16 and fp16.

  direct  seconds of a direct read (O_DIRECT) of the same file, over those of loading: the aim is 0.9
  owner   the same of what bounds the owner: one thread that copies (fp32) or widens (16 bits) the file's values from memory
          into such planes

The file's pages are dropped from the cache before each of them.  Both limits take turns with loading; median and quartiles
over rounds.
"""
