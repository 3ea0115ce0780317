'use strict';
// Keeps the state of a <details data-remember="name"> in this browser. Events are caught on the document, because
// refresh.js replaces the elements.
{
    const key = name => 'rmq-delay-open-' + name;

    document.addEventListener('toggle', function(event) {
        const name = event.target.dataset.remember;
        if (name) {
            localStorage.setItem(key(name), event.target.open ? '1' : '');
        }
    }, true);

    document.addEventListener('DOMContentLoaded', function() {
        document.querySelectorAll('details[data-remember]').forEach(function(details) {
            details.open = Boolean(localStorage.getItem(key(details.dataset.remember)));
        });
    });
}
