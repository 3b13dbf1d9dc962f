#!/bin/sh
# no_daemon.sh PROGRAM: without a daemon the program ends with status 1 and names the socket.
set -u
nowhere=/nonexistent/zerod.sock
words=$(ZEROD_SOCKET=$nowhere "$1" 2>&1)
status=$?
printf '%s\n' "$words"
[ "$status" -eq 1 ] || exit 1
case $words in
*"$nowhere"*) exit 0 ;;
esac
exit 1
