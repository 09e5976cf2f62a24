// Browsers start no Worker for a page that was opened as a file, and the theme searches in a Worker.
// For such pages only, this one runs the worker's script in a hidden frame of the same page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.appendChild(frame)
      const inner = frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><title>search</title>")
      inner.document.close()
      const load = source => new Promise((resolve, reject) => {
        const script = inner.document.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = () => reject(new Error(`${source} cannot be loaded`))
        inner.document.head.appendChild(script)
      })
      inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      inner.postMessage = data => {
        const event = new MessageEvent("message", {data})
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      this.inner = inner
      load(new URL(address, document.baseURI).href).then(() => {
        const waiting = this.waiting
        this.waiting = undefined
        waiting.forEach(data => this.deliver(data))
      })
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(data)
    }

    deliver(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", {data}))
    }

    terminate() { this.inner.frameElement.remove() }
  }
}
