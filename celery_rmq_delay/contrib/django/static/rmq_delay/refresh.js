'use strict';
// Refreshes the figures and the rows of a page. Off until the user ticks the box (on at first for an operation that is
// running); paused while the tab is hidden or rows are ticked.
{
    function start(bar) {
        const box = bar.querySelector('input');
        const status = bar.querySelector('[role=status]');
        const automatic = bar.hasAttribute('data-automatic');
        const key = 'rmq-delay-refresh';
        box.checked = automatic || sessionStorage.getItem(key) === location.pathname;
        bar.hidden = false;
        box.addEventListener('change', function() {
            if (box.checked) {
                sessionStorage.setItem(key, location.pathname);
            } else {
                sessionStorage.removeItem(key);
            }
            show('');
        });
        setInterval(tick, Number(bar.dataset.seconds) * 1000);

        function show(text) {
            if (status.textContent !== text) {
                status.textContent = text;
            }
        }

        function isBusy() {
            return document.hidden || document.querySelector('input.action-select:checked, #action-toggle:checked') !== null;
        }

        async function tick() {
            if (!box.checked) {
                return;
            }
            if (isBusy()) {
                show(bar.dataset.paused);
                return;
            }
            try {
                const answer = await fetch(location.href, {credentials: 'same-origin', headers: {'Accept': 'text/html'}});
                if (!answer.ok || answer.redirected) {
                    throw new Error(String(answer.status));
                }
                const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
                if (!box.checked || isBusy()) {
                    return;
                }
                swap(fresh);
                show(bar.dataset.updated + ' ' + new Date().toLocaleTimeString());
            } catch (error) {
                show(bar.dataset.failed);
            }
        }

        function swap(fresh) {
            const rows = document.querySelectorAll('#result_list tbody tr');
            const others = fresh.querySelectorAll('#result_list tbody tr');
            if (rows.length !== others.length) {
                location.reload();
                return;
            }
            document.querySelectorAll('[data-live], #rmq-summary').forEach(function(old) {
                const other = fresh.getElementById(old.id);
                if (other) {
                    const open = Array.from(old.querySelectorAll('details')).map(each => each.open);
                    old.replaceChildren(...other.childNodes);
                    old.querySelectorAll('details').forEach(function(each, index) {
                        each.open = open[index] || false;
                    });
                }
            });
            rows.forEach(function(row, index) {
                refill(row, others[index]);
            });
            if (automatic && !fresh.querySelector('[data-automatic]')) {
                location.reload();  // the operation has ended: the page has other buttons now
            }
        }

        // Keep the checkboxes: Django's script listens to these elements.
        function refill(row, other) {
            const cells = Array.from(other.cells);
            Array.from(row.cells).forEach(function(cell, index) {
                const box = cell.querySelector('input.action-select');
                if (box) {
                    const fresh = cells[index].querySelector('input.action-select');
                    box.value = fresh.value;
                    box.setAttribute('aria-label', fresh.getAttribute('aria-label') || '');
                } else {
                    cell.replaceChildren(...cells[index].childNodes);
                }
            });
        }
    }

    document.addEventListener('DOMContentLoaded', function() {
        const bar = document.getElementById('rmq-refresh');
        if (bar) {
            start(bar);
        }
    });
}
