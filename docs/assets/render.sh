#!/bin/sh
# Render the diagrams after a change of their sources: every .mmd here becomes the .svg beside it.
# Needs npx and a Chromium; CHROMIUM names it where it is not /usr/bin/chromium.
set -eu
cd "$(dirname "$0")"
browser=$(mktemp)
trap 'rm -f "$browser"' EXIT
printf '{"executablePath": "%s", "args": ["--no-sandbox", "--disable-gpu"]}\n' "${CHROMIUM:-/usr/bin/chromium}" > "$browser"
for source in *.mmd; do
    PUPPETEER_SKIP_DOWNLOAD=1 ${MMDC:-npx --yes @mermaid-js/mermaid-cli} --quiet \
        --puppeteerConfigFile "$browser" --configFile mermaid.json --backgroundColor white \
        --svgId "${source%.mmd}" --input "$source" --output "${source%.mmd}.svg"
done
