'use strict';
// A button with data-copy="id" copies the text of that element.
{
    document.addEventListener('DOMContentLoaded', function() {
        document.querySelectorAll('button[data-copy]').forEach(function(button) {
            const label = button.textContent;
            button.hidden = false;
            button.addEventListener('click', async function() {
                const source = document.getElementById(button.dataset.copy);
                const text = 'value' in source ? source.value : source.textContent;
                try {
                    await navigator.clipboard.writeText(text);
                } catch (error) {  // no permission, or no https
                    const area = document.createElement('textarea');
                    area.value = text;
                    document.body.append(area);
                    area.select();
                    document.execCommand('copy');
                    area.remove();
                }
                button.textContent = button.dataset.copied;
                setTimeout(function() {
                    button.textContent = label;
                }, 2000);
            });
        });
    });
}
