#!/bin/sh
# Render each .mmd file in this folder to an .svg of the same name. Run it after a change of a source.
# Needs npx and Chromium; set CHROMIUM to its path if that is not /usr/bin/chromium.
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
