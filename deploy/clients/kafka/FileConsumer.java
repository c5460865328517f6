import java.io.FileOutputStream;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Appends the records of a topic to a file, one a line, and commits after they are on the disk. */
public class FileConsumer {
  public static void main(String[] arguments) throws Exception {
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", "file",
            "enable.auto.commit", false,
            "auto.offset.reset", "earliest",
            "metadata.max.age.ms", 2000);
    var bytes = new ByteArrayDeserializer();
    try (var consumer = new KafkaConsumer<>(settings, bytes, bytes);
        var file = new FileOutputStream(arguments[2], true)) {
      consumer.subscribe(List.of(arguments[1]));
      while (true) {
        var records = consumer.poll(Duration.ofSeconds(1));
        for (var one : records) {
          file.write(one.value());
          file.write('\n');
        }
        if (!records.isEmpty()) {
          file.getChannel().force(false);
          consumer.commitSync();
        }
      }
    }
  }
}
