/* Search without a server. A page that was opened from a folder (file://) may not start a worker, so the program of the worker runs in a
   hidden frame instead. The theme loads this file before its own; on a server it changes nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      const waiting = []
      frame.hidden = true
      frame.title = "search"
      document.documentElement.append(frame)
      const inside = frame.contentWindow
      // What the program sends goes to the page; the page's messages wait until the program has been read.
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = () => {}
      this.send = data => waiting.push(data)
      const program = inside.document.createElement("script")
      program.src = new URL(address, document.baseURI).href
      program.onload = () => {
        this.send = data => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
        waiting.forEach(this.send)
      }
      inside.document.body.append(program)
    }

    postMessage(data) {
      this.send(data)
    }

    terminate() {}
  }
}
