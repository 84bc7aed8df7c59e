#!/bin/sh
# Print the name of an image to build on: Debian 12 with Python 3.11.
#
# With a registry that is the usual image, and nothing is made.  Only where that image is
# neither here nor can be pulled, one like it is made from Debian's packages, once, from the
# mirror that this machine itself uses.  Progress goes to standard error.
#
#   QUIVER_BASE_IMAGE=$(docker/base.sh) docker-compose up --build
set -eu

USUAL=python:3.11-slim-bookworm
LOCAL=quiver-base:bookworm
PULL_SECONDS=300
BUNDLE=/etc/ssl/certs/ca-certificates.crt

say() { echo "base image: $*" >&2; }
present() { docker image inspect "$1" > /dev/null 2>&1; }

install_debootstrap() {
  command -v debootstrap > /dev/null && return
  need="apt-get install -y --no-install-recommends debootstrap"
  if command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    say "installing debootstrap"
    { apt-get update && $need; } > /dev/null 2>&1 && return
  fi
  say "$USUAL can't be pulled, and debootstrap is missing, which could make one like it."
  say "Install it as root ($need), or name an image of your own: QUIVER_BASE_IMAGE=..."
  exit 1
}

# The first archive of Debian itself in this machine's own sources, in either format.
mirror() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null |
    sed -n -e 's/^deb \(\[[^]]*\] \)\{0,1\}\(https\{0,1\}:[^ ]*\) bookworm .*/\2/p' \
           -e 's/^URIs: *\(https\{0,1\}:[^ ]*\).*/\1/p' |
    grep -E '/debian/?$' | head -n 1
}

make_local() {
  from=$(mirror)
  install_debootstrap
  [ "$(id -u)" = 0 ] || { say "making an image needs root: sudo docker/base.sh"; exit 1; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  say "$USUAL can't be pulled; making $LOCAL from Debian's packages, about a minute"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
    bookworm "$work/root" ${from:+"$from"} > "$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
  # Whom this machine trusts, an image made on it trusts: pip must get through where this
  # machine gets through.
  [ ! -f "$BUNDLE" ] || cp "$BUNDLE" "$work/root$BUNDLE"
  rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists" "$work/root/usr/share/doc" \
    "$work/root/usr/share/man" "$work/root/usr/share/locale"
  mkdir -p "$work/root/var/cache/apt/archives/partial" "$work/root/var/lib/apt/lists/partial"
  tar -C "$work/root" -c . | docker import \
    --change "ENV PIP_CERT=$BUNDLE" --change "ENV LANG=C.UTF-8" - "$LOCAL" > /dev/null
}

if [ -n "${QUIVER_BASE_IMAGE:-}" ]; then
  echo "$QUIVER_BASE_IMAGE"
elif present "$USUAL"; then
  echo "$USUAL"
elif present "$LOCAL"; then
  echo "$LOCAL"
elif say "looking for $USUAL" && timeout "$PULL_SECONDS" docker pull --quiet "$USUAL" > /dev/null 2>&1; then
  echo "$USUAL"
else
  make_local
  echo "$LOCAL"
fi
