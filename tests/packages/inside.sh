#!/bin/bash
# The part of run.sh in namespaces of its own: packages in the directories $1 and $2, an empty directory $3.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

self=packages
old=$1 new=$2 work=$3
new_root=$work/root
wait_s=600 # for anything
steps=100
passed=0
trainer=

fail() {
        say "FAILED: $*" >&2
        tail -n 20 "$work"/{dpkg,trainer}.log "$new_root/run/zerod.log" >&2
        exit 1
}

# check WHAT COMMAND...
check() {
        local what=$1
        shift
        "$@" || fail "$what"
        passed=$((passed + 1))
        say "ok: $what"
}

in_root() {
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive UCX_LOG_LEVEL=error UCX_MEM_EVENTS=n \
                timeout "$wait_s" chroot "$new_root" "$@" </dev/null
}

package_manager() {
        in_root dpkg "$@" >>"$work/dpkg.log" 2>&1
}

make_root() {
        mount -t tmpfs none "$work" && mkdir "$work"/{up,work,root,old,new} &&
                mount -t overlay -o "lowerdir=/,upperdir=$work/up,workdir=$work/work" none "$new_root" &&
                mount -t proc none "$new_root/proc" && mount --rbind /dev "$new_root/dev" || return 1
        mkdir -p "$new_root/dev/shm"
        for directory in dev/shm run tmp; do
                mount -t tmpfs none "$new_root/$directory" || return 1
        done
        chmod 1777 "$new_root"/{dev/shm,tmp}
        mkdir -p "$new_root"/tmp/{old,new} "$new_root/run/systemd/system" &&
                mount --bind "$old" "$new_root/tmp/old" && mount --bind "$new" "$new_root/tmp/new" &&
                ip link set lo up || return 1
        # man-db would index the pages of the whole machine
        rm -f "$new_root/var/lib/man-db/auto-update"
        cp "$root/tests/packages/deb-systemd-invoke" "$new_root/usr/bin/deb-systemd-invoke" &&
                awk 'BEGIN { for (a = 0; a < 60; a++) for (b = 0; b < 60; b++) printf "%d and %d make %d; ", a, b, a + b }' >"$new_root/tmp/text"
}

# install_all old|new: those with symbols for debuggers would keep zerod from being removed.
install_all() {
        local files
        mapfile -t files < <(find "$new_root/tmp/$1" -name '*.deb' ! -name '*-dbgsym_*')
        package_manager -i "${files[@]#"$new_root"}"
}

ctl() {
        in_root zeroctl --timeout 60 "$@"
}

main_pid() {
        cat "$new_root/run/zerod.pid"
}

# The version of the program that the process runs, not that of the file.
running_version() {
        ctl status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])'
}

checksum() {
        ctl checksum "$1" --json | python3 -c 'import json, sys; a = json.load(sys.stdin); print(a["version"], a["checksum"])'
}

version_of() {
        dpkg-deb -f "$1"/zerod_*.deb Version
}

states() {
        (cd "$new_root/dev/shm/zerod" && sha256sum -- *.state) 2>/dev/null
}

train() {
        in_root zerod-gpt --data /tmp/text --job "$1" --steps "$steps" --layers 2 --heads 2 --width 64 --context 64 --batch 4 \
                --eval-windows 4
}

runs_as_its_user() {
        [[ $(stat -c %u "/proc/$(main_pid)") == "$(in_root id -u zerod)" ]]
}

found_by_users() {
        local file
        for file in man/man{8/zerod.8,1/zeroctl.1,5/zerod.conf.5,5/zeroctl-json.5,3/zero.3,3/zero_fetch.3}.gz doc/zerod/deploy/README.md \
                bash-completion/completions/zeroctl zsh/vendor-completions/_zeroctl fish/vendor_completions.d/zeroctl.fish; do
                [[ -s $new_root/usr/share/$file ]] || fail "no /usr/share/$file"
        done
        [[ -s $new_root/etc/apparmor.d/usr.bin.zerod ]] && ! grep -q '^[^#[]' "$new_root/etc/zerod/zerod.conf"
}

# The system's Python by the package, a virtual environment by the wheel: both find the library of libzero0.
python_finds_libzero() {
        local show='import zerod, zerod._library as l; print(zerod.__file__, l.library()._name)'
        [[ $(in_root python3 -c "$show") == /usr/lib/python3/dist-packages/* ]] &&
                in_root python3 -m venv /tmp/venv &&
                in_root sh -c '/tmp/venv/bin/pip install -q --no-index /usr/share/python-wheels/zerod-*.whl' &&
                [[ $(in_root /tmp/venv/bin/python -c "$show") == /tmp/venv/* ]]
}

completion_offers_jobs() {
        # shellcheck disable=SC2016 # bash expands it in the root
        [[ $(in_root bash -c '. /usr/share/bash-completion/completions/zeroctl
                COMP_WORDS=(zeroctl checksum "") COMP_CWORD=2; _zeroctl; echo "${COMPREPLY[@]}"') == calm ]]
}

mount_is_left_alone() {
        ! grep -l 'dev-shm-zerod' "$new_root"/var/lib/dpkg/info/zerod.{postinst,prerm,postrm}
}

# The trainer stands still while dpkg unpacks; the stand-in lets it go on, and restarts the daemon one step later.
upgrade_during_training() {
        local before after
        train upgraded >"$work/trainer.log" 2>&1 &
        trainer=$!
        ctl wait upgraded --step $((steps / 10)) || return 1
        before=$(main_pid)
        pgrep -x zerod-gpt >"$new_root/run/trainer.pid" && kill -STOP "$(<"$new_root/run/trainer.pid")" || return 1
        install_all new || return 1
        after=$(main_pid)
        [[ $before != "$after" ]] || fail "the daemon is still $before"
        [[ -s $new_root/run/restarted-at && $(<"$new_root/run/restarted-at") -lt $steps ]] || fail 'training had ended'
        wait "$trainer"
}

# purge_answering ANSWER: as a person with a terminal and without apt-utils, which would load the question.
purge_answering() {
        touch "$new_root/dev/shm/zerod/kept" || return 1
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=readline TERM=dumb \
                timeout "$wait_s" chroot "$new_root" dpkg --purge zerod <<<"$1" >>"$work/dpkg.log" 2>&1
}

main() {
        local sum kept
        make_root || fail 'the root could not be made'
        check 'dpkg -i on a clean root' install_all old
        check 'the daemon answers' ctl ping
        check 'it runs as the user zerod' runs_as_its_user
        check 'man pages, completion, documents, configuration, AppArmor profile' found_by_users
        check 'python3-zerod and its wheel find libzero' python_finds_libzero
        check 'no script touches the mount of the states' mount_is_left_alone
        check "it is version $(version_of "$old")" [ "$(running_version)" = "$(version_of "$old")" ]
        train calm >"$work/trainer.log" 2>&1 || fail 'training'
        sum=$(checksum calm)
        check 'completion offers the job' completion_offers_jobs
        echo 'session_limit = 1000' >>"$new_root/etc/zerod/zerod.conf"
        check 'dpkg -i of a newer version during training' upgrade_during_training
        check "it is version $(version_of "$new")" [ "$(running_version)" = "$(version_of "$new")" ]
        check "the state of training without an upgrade, $sum" [ "$sum" = "$(checksum upgraded)" ]
        check 'the changed configuration stays' grep -q 'session_limit = 1000' "$new_root/etc/zerod/zerod.conf"
        kept=$(states)
        check 'dpkg --remove' package_manager --remove zerod
        check 'the daemon ends' [ ! -e "$new_root/run/zerod.pid" ]
        check 'states survive that' [ -n "$kept" -a "$kept" = "$(states)" ]
        check 'dpkg --purge, where nobody answers' package_manager --purge zerod
        check 'states survive that' [ "$kept" = "$(states)" ]
        check 'dpkg -i again' install_all new
        check 'the job is taken up' [ "$sum" = "$(checksum upgraded)" ]
        echo 'zerod zerod/purge_states boolean true' >"$new_root/tmp/answers"
        check 'an answer for debconf' in_root debconf-set-selections /tmp/answers
        check 'dpkg --purge, with the answer to delete states' package_manager --purge zerod
        check 'states are gone' [ -z "$(find "$new_root/dev/shm/zerod" "$new_root/var/lib/zerod" -type f 2>/dev/null)" ]
        check 'dpkg -i after that' install_all new
        check 'dpkg --purge, where somebody says no' purge_answering no
        check 'what is there survives that' [ -e "$new_root/dev/shm/zerod/kept" ]
        check 'dpkg -i again' install_all new
        check 'dpkg --purge, where somebody says yes' purge_answering yes
        check 'all is gone' [ ! -e "$new_root/dev/shm/zerod/kept" -a ! -e "$new_root/var/log/zerod" ]
        say "$passed checks passed"
}

main
