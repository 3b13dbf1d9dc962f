#!/bin/sh
# Every kernel of the plugin is there for sm_80 and sm_90, and as PTX for newer GPUs.
#   test_targets.sh CUOBJDUMP PLUGIN
elf=$("$1" --list-elf "$2") && ptx=$("$1" --list-ptx "$2") || exit 1
old=$(echo "$elf" | grep -c 'sm_80\.cubin')
new=$(echo "$elf" | grep -c 'sm_90\.cubin')
any=$(echo "$ptx" | grep -c 'sm_90\.ptx')
echo "sm_80: $old, sm_90: $new, PTX: $any"
[ "$old" -gt 0 ] && [ "$new" -eq "$old" ] && [ "$any" -eq "$old" ]
