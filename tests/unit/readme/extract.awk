#!/usr/bin/awk -f
# The fenced block that follows the line "<!-- program", at most 40 lines; anything else fails.
/^<!-- program/ { marked = 1 }
inside && /^```$/ { inside = 0; complete = 1 }
inside { print; lines++ }
marked && !complete && /^```c$/ { inside = 1 }
END { exit !(complete && lines <= 40) }
